"""One backend, end to end: its metrics page, its health page, and, where probes are on, one token. Changes nothing.

The probe is the exporter's own: marked by its request id, one token, greedily. Nothing else costs an engine
anything.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from tailkeeper.asking import Answer, Asker, AskError, Trouble
from tailkeeper.doctor.findings import Finding, Findings, Mistake, Severity
from tailkeeper.doctor.sentences import BAD_FILE, skewed, unreachable
from tailkeeper.init.pages import MetricsHere, metrics_of
from tailkeeper_exporter.clients import Clients, CredentialError, credentials
from tailkeeper_exporter.engines import Engine, engine_named
from tailkeeper_exporter.page_reader import page_url
from tailkeeper_exporter.probe import Prober, ProbeResult
from tailkeeper_exporter.probe_answer import Outcome, is_loading
from tailkeeper_watchdog.actuators.calls import excerpt
from tailkeeper_watchdog.settings import WatchedBackend

ASK_S = 3.0
"""For a page: more than the exporter gives it, so that what is merely slow is told from what is not there."""
PROBE_S = 8.0
NEARLY = 0.8
"""Of its limit a probe may take before it is told: a limit that is the usual time flaps (field report C4)."""
METRICS_SWITCHES = {
    "vllm": "start vLLM without --disable-log-stats, and see that no proxy before it hides /metrics",
    "sglang": "start SGLang with --enable-metrics",
    "llamacpp": "start llama-server with --metrics",
    "triton": "start Triton with --allow-metrics=true; its page is at port 8002 unless metrics_url says else",
    "trtllm": "see that no proxy hides /prometheus/metrics of trtllm-serve; /metrics there is another document",
    "ray": "name a Ray node's metrics page in metrics_url (port 8080 unless --metrics-export-port says else)",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A backend and where it stands in the file: `backends.0`, or the discovery that found it."""

    backend: WatchedBackend
    path: str

    @property
    def auth(self) -> str:
        return f"{self.path}.auth" if self.backend.auth.model_dump(exclude_none=True) else f"{self.path}.api_key_file"

    @property
    def page_key(self) -> str:
        return f"{self.path}.{'url' if self.backend.metrics_url is None else 'metrics_url'}"

    def finding(self, mistake: Mistake, key: str, what: str, do: str, severity: Severity = Severity.WRONG) -> Finding:
        return Finding(mistake, key, what, do, severity, self.backend.name)


async def check_backend(place: Place, clients: Clients) -> Findings:
    """All that is to be said of one backend, worst first where one thing hides the others."""
    backend, engine = place.backend, engine_named(place.backend.engine)
    try:
        headers = credentials(backend)
    except CredentialError as error:
        return [place.finding(Mistake.TOKEN_MISSING, place.auth, str(error), BAD_FILE)]
    try:
        async with Asker(backend.url, backend.auth, clients, headers, (backend.metrics_url or "",)) as asker:
            return await _asked(place, engine, asker)
    except AskError as error:
        return [_gone(place, error, f"{place.path}.url", backend.url)]


async def _asked(place: Place, engine: Engine, asker: Asker) -> Findings:
    backend = place.backend
    health = await _get(asker, backend.url + engine.health_path_of(backend.model))
    if isinstance(health, AskError) and health.status is None:
        return [_gone(place, health, f"{place.path}.url", backend.url)]
    url = page_url(backend, engine)
    page = None if url is None else await _get(asker, url)
    found = [*_of_health(place, engine, health, page), *_of_page(place, engine, page, url)]
    answered = next((answer for answer in (health, page) if isinstance(answer, Answer)), None)
    found += skewed(
        answered.clock if answered else None, f"{place.path}.url", f"the engine {backend.name!r}", backend=backend.name
    )
    metrics = metrics_of(page.body) if isinstance(page, Answer) else None
    found += _of_model(place, metrics)
    hidden = {Mistake.NOT_AN_ENGINE, Mistake.TOKEN_MISSING, Mistake.BACKEND_NOT_READY} & {f.mistake for f in found}
    if _is_probed(place, engine) and not hidden:
        found += await _probed(place, engine, asker, metrics)
    return found


def _is_probed(place: Place, engine: Engine) -> bool:
    return place.backend.probe.enabled and engine.probe is not None


async def _get(asker: Asker, url: str) -> Answer | AskError:
    try:
        return await asker.get_url(url, ASK_S)
    except AskError as error:
        return error


def _gone(place: Place, error: AskError, key: str, url: str) -> Finding:
    return unreachable(error, Mistake.BACKEND_UNREACHABLE, key, url, "the engine", place.auth, place.backend.name)


def _of_health(place: Place, engine: Engine, health: Answer | AskError, page: Answer | AskError | None) -> Findings:
    """What the health page says. Its status alone makes nobody dead."""
    if isinstance(health, Answer):
        return []
    key, url = f"{place.path}.url", place.backend.url
    if health.trouble is Trouble.DENIED:
        return [_gone(place, health, key, url)]
    if health.status == 404:
        if isinstance(page, Answer):
            return []  # NIM and proxies have no health page where we look; the metrics page proves the address
        if page is None and _is_probed(place, engine):
            return []  # an engine of no kind that we know may have neither page; the probe proves the address
        what = f"{url} answers 404 for {engine.health_path} and has no metrics page: this is not {place.backend.engine}'s API"
        return [place.finding(Mistake.NOT_AN_ENGINE, key, what, f"correct {key} to the engine's own address, without a path")]
    loading = health.status == 503 and is_loading(health.body)
    what = f"{url}{engine.health_path} {'says that it is still loading' if loading else str(health)}"
    do = "wait until the model is loaded" if loading else "look into the engine's log: it is up and says that it cannot serve"
    return [place.finding(Mistake.BACKEND_NOT_READY, key, what, do, Severity.WARNING)]


def _of_page(place: Place, engine: Engine, page: Answer | AskError | None, url: str | None) -> Findings:
    if page is None:
        return []
    if isinstance(page, AskError):
        return _no_page(place, page, url or "")
    metrics = metrics_of(page.body)
    if metrics is None:
        what = f"{url} answers what is no metrics page ({_beginning(page)})"
        do = f"correct {place.page_key}, or turn the page on: {_switch(place)}"
        return [place.finding(Mistake.METRICS_OFF, place.page_key, what, do)]
    return _of_series(place, engine, metrics, url or "")


def _no_page(place: Place, error: AskError, url: str) -> Findings:
    if error.status in (404, 405, 501):
        what = f"{url} {error}: the metrics page is off, or elsewhere"
        return [place.finding(Mistake.METRICS_OFF, place.page_key, what, f"{_switch(place)}; or name its address in metrics_url")]
    if error.status is not None and error.trouble is not Trouble.DENIED:
        what = f"{url} {error}, so nothing is known of its work"
        return [place.finding(Mistake.METRICS_OFF, place.page_key, what, "look into the engine's log for the reason")]
    if error.trouble is Trouble.REFUSED and urlsplit(url).netloc != urlsplit(place.backend.url).netloc:
        what = f"{url} {error}: the metrics page has a port of its own, and it is off"
        return [place.finding(Mistake.METRICS_OFF, f"{place.path}.metrics_url", what, _switch(place))]
    return [_gone(place, error, place.page_key, url)]


def _switch(place: Place) -> str:
    return METRICS_SWITCHES.get(place.backend.engine, "turn the engine's metrics on")


def _beginning(page: Answer) -> str:
    words = excerpt(page.words()[:200])[:60]
    return f"it begins with {words!r}" if words else "it is empty"


def _of_series(place: Place, engine: Engine, metrics: MetricsHere, url: str) -> Findings:
    """Whether the page is this engine's."""
    wanted = {name for source in engine.sources for name in source.names}
    seen = "" if metrics.engine is None else metrics.engine.engine
    if not wanted or seen == engine.name or _some(wanted, metrics.names):
        return []
    if seen:
        key = f"{place.path}.engine"
        what = f"{url} is {seen}'s page, and the file says {engine.name}"
        return [place.finding(Mistake.WRONG_ENGINE, key, what, f"set {key}: {seen}")]
    what = f"{url} has none of the series of {engine.name}"
    do = f"correct {place.path}.engine or {place.page_key}; or: {_switch(place)}"
    return [place.finding(Mistake.METRICS_OFF, place.page_key, what, do)]


def _some(wanted: set[str], names: frozenset[str]) -> bool:
    """A histogram is on the page by its parts alone."""
    return any(name in names or f"{name}_count" in names for name in wanted)


def _of_model(place: Place, metrics: MetricsHere | None) -> Findings:
    configured = place.backend.model
    served = () if metrics is None or metrics.engine is None else metrics.engine.models
    if configured is None or not served or configured in served:
        return []
    what = f"its page names the model {', '.join(served[:3])}, and the file says {configured}"
    do = f"set {place.path}.model to the name that it serves, or leave the key out"
    return [place.finding(Mistake.WRONG_MODEL, f"{place.path}.model", what, do, Severity.WARNING)]


async def _probed(place: Place, engine: Engine, asker: Asker, metrics: MetricsHere | None) -> Findings:
    backend = place.backend
    limit_s = backend.probe.first_token_timeout_s
    prober = Prober(asker.client, backend.url, engine, backend.model, limit_s, time.monotonic)
    models = () if metrics is None or metrics.engine is None else metrics.engine.models
    return _of_probe(place, await prober.ask(models, asker.headers, max(PROBE_S, 2 * limit_s)), limit_s)


def _of_probe(place: Place, result: ProbeResult, limit_s: float) -> Findings:
    key = f"{place.path}.probe"
    if result.first_token_s is not None and result.outcome in (Outcome.ANSWERED, Outcome.TIMEOUT):
        if result.first_token_s <= NEARLY * limit_s:
            return []
        late = result.outcome is Outcome.TIMEOUT
        what = f"the first token took {result.first_token_s:.2f} s, and {key}.first_token_timeout_s is {limit_s:g}"
        do = "raise it above what the engine needs under load, or find out why it is slow now"
        return [place.finding(Mistake.PROBE_SLOW, key, what, do, Severity.WRONG if late else Severity.WARNING)]
    if result.outcome is Outcome.UNAUTHORIZED:
        what = f"the engine refuses our probe ({result.code}): it wants a key"
        return [place.finding(Mistake.TOKEN_MISSING, place.auth, what, f"put its key into a file, and name it in {place.auth}")]
    what, do, severity = _PROBES.get(result.outcome, _OTHER)
    return [place.finding(Mistake.PROBE_REFUSED, key, f"{what} ({result.code or result.outcome.value})", do, severity)]


_OTHER = (
    "a request for one token failed",
    "ask it by hand: POST /v1/completions with max_tokens 1; the engine's log has the reason",
    Severity.WRONG,
)
_PROBES = {
    Outcome.TIMEOUT: (
        "a request for one token was taken and not answered",
        "is it hung? Look into its log before anything else",
        Severity.WRONG,
    ),
    Outcome.NOT_FOUND: (
        "neither /v1/completions nor /v1/chat/completions serves the model",
        "set `model` to a name of its /v1/models; or probe: {enabled: false} where it generates no text",
        Severity.WRONG,
    ),
    Outcome.OVERLOADED: ("it is full, and refuses our probe too", "come back when it is less busy", Severity.WARNING),
    Outcome.LOADING: ("it is still loading", "wait until the model is loaded", Severity.WARNING),
    Outcome.CACHED: (
        "a cache before the engine answered our probe",
        "name the engine's own address in `url`, not that of the cache",
        Severity.WARNING,
    ),
    Outcome.INVALID_CONTENT: (
        "the answer to a request for one token held no token",
        "ask it by hand with curl; is something else than an engine behind `url`?",
        Severity.WRONG,
    ),
}
"""What, what to do, and how bad, of a probe that brought no token."""
