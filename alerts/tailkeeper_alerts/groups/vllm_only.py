"""For a vLLM that Prometheus scrapes by itself: our names, recorded from its own, so that boards and alerts work without us.

The names come from the exporter's table for vLLM, old and new ones; ``vllm:x`` and ``vllm_x`` are one name, because the client
library writes the one or the other as the scraper asks. ``model_name`` becomes ``model``, and a target without a label
``backend`` is called by its ``instance``. A model that an exporter of ours publishes is left to it, so that nothing is
counted twice where both are scraped.

What a recording rule cannot know is left out: nobody asks the engine anything here, so nobody can say that it is hung or down.
Work in flight without a token for two minutes is *unknown*, as in the watchdog's own reading of plain engines. Refused requests
are counted as errors: the page tells of them twice, and a difference of two counters could fall, which every rate would take
for a restart.
"""

from __future__ import annotations

from tailkeeper_alerts.model import Group, Recording, RuleSettings
from tailkeeper_alerts.promql import CLUSTER, INSTANCE, JOB, LE, Matcher, by, eq, on, regex
from tailkeeper_alerts.vllm_cases import cases, queries
from tailkeeper_exporter import catalog
from tailkeeper_exporter.catalog import BACKEND, CANARY, MODEL, Kind, Label, Merge, Metric
from tailkeeper_exporter.engines import engine_named
from tailkeeper_exporter.engines.base import Source

RANK = Label("engine", 64, "data-parallel rank, as vLLM calls it")
PLACE = (CLUSTER, BACKEND, INSTANCE, CANARY)
"""What every mapped series is by, beside its model. The instance stays: a sum over engines would fall when one restarts."""
WITH_MODEL = (*PLACE, MODEL)
SCRAPED = (CLUSTER, JOB, INSTANCE)
EXPORTED = "tailkeeper:exported_models:present"
TARGETS = "tailkeeper:vllm_targets:up"
EXPORTER_GONE = "15m"
"""So long an exporter may be restarted or away before a plain scrape takes its place."""
STILL = "2m"
"""Work in flight for so long without a token: a prefill may last from one scrape to the next, but not so long."""
OUTCOMES = ("ok", "aborted")
"""Those that one row each of the table tells."""

SOURCES = engine_named("vllm").sources
_REQUESTS = tuple(source for source in SOURCES if source.metric is catalog.REQUESTS)


def group(settings: RuleSettings) -> Group:
    rules = (_exported(), _targets(), *_mapped(), *_outcomes(), *_derived(), *_states())
    return Group("tailkeeper-vllm-only", rules, cases(settings), queries())


# Names and labels


def _selector(name: str, suffix: str = "", *matchers: Matcher) -> str:
    """The page's name in both spellings. What has no prefix is written one way only."""
    inside = [matcher.text for matcher in matchers]
    if not name.startswith("vllm_"):
        return f"{name}{suffix}{{{','.join(inside)}}}"
    spelt = f'__name__=~"vllm[:_]{name.removeprefix("vllm_")}{suffix}"'
    return f"{{{','.join([spelt, *inside])}}}"


def _placed(expression: str) -> str:
    """With ``backend``: the target's own label, else its instance."""
    joined = f'label_join({expression}, "tk_place", ";", "{BACKEND.name}", "{INSTANCE.name}")'
    return f'label_replace({joined}, "{BACKEND.name}", "$1", "tk_place", ";(.+)")'


def _named(expression: str) -> str:
    return f'label_replace({_placed(expression)}, "{MODEL.name}", "$1", "model_name", "(.+)")'


def _own(metric: Metric, *matchers: Matcher) -> str:
    """What this group recorded under our name: scraped series, an exporter's for one, have a job, and recorded ones none."""
    return f"{metric.name}{{{','.join(m.text for m in (eq(JOB, ''), *matchers))}}}"


def _not_exported(expression: str) -> str:
    return f"({expression})\nunless {on(CLUSTER, MODEL)} {EXPORTED}"


def _merged(source: Source, name: str, suffix: str = "", more: tuple[Label, ...] = ()) -> str:
    """By the catalogue's rule over ranks and what else splits it; the largest of what two jobs tell of the same."""
    matchers = tuple(regex(Label(key, 0, ""), "|".join(values)) for key, values in source.where)
    split = tuple(matcher.label for matcher in matchers) or ((Label("reason", 0, ""),) if "rejections" in name else ())
    told = by("max", (*WITH_MODEL, RANK, *split, *more), _named(_selector(name, suffix, *matchers)))
    return by("max" if source.metric.merge is Merge.MAX else "sum", (*WITH_MODEL, *more), told)


# The rules


def _exported() -> Recording:
    published = f"present_over_time({catalog.RUNNING.name}{{{Matcher(JOB, '!=', '').text}}}[{EXPORTER_GONE}])"
    return Recording(EXPORTED, by("max", (CLUSTER, MODEL), published), "1 for each model that an exporter of ours publishes.")


def _targets() -> Recording:
    """``up`` of each target that is a vLLM. One that does not answer is known as such from what this rule recorded before."""
    running = _selector("vllm_num_requests_running")
    seen = by("max", (*SCRAPED, MODEL), _named(running))
    known = by("topk", SCRAPED, f"{seen} or {on(*SCRAPED)} {by('max', (*SCRAPED, MODEL), TARGETS)}", "1")
    up = f"{_placed('up')} * {on(*SCRAPED)} group_left ({MODEL.name}) ({known} * 0 + 1)"
    return Recording(TARGETS, by("max", (*WITH_MODEL, JOB), up), "Prometheus' `up` of every target that is a vLLM.")


def _mapped() -> tuple[Recording, ...]:
    rows = tuple(source for source in SOURCES if source.metric is not catalog.REQUESTS)
    return tuple(rule for source in rows for rule in _of_source(source))


def _of_source(source: Source) -> tuple[Recording, ...]:
    metric = source.metric
    parts: dict[str, tuple[Label, ...]] = {"": ()}
    if metric.kind is Kind.HISTOGRAM:
        parts = {"_bucket": (LE,), "_count": (), "_sum": ()}
    meaning = f"From {', else '.join(f'`{name}`' for name in source.names)}. {metric.help}"
    return tuple(
        Recording(metric.name + suffix, _not_exported(_first_of(source, suffix, more)), meaning) for suffix, more in parts.items()
    )


def _first_of(source: Source, suffix: str, more: tuple[Label, ...]) -> str:
    """The newest name that the engine has. Its buckets never mix with those of an older one."""
    expression = ""
    for name in reversed(source.names):
        newer = _merged(source, name, suffix, more)
        expression = f"{newer}\nor ({expression}\nunless {on(*WITH_MODEL)} {newer})" if expression else newer
    return expression


def _outcomes() -> tuple[Recording, ...]:
    told = {outcome: source for source in _REQUESTS for key, outcome in source.fixed if source.where and outcome in OUTCOMES}
    rows = {outcome: _not_exported(_merged(told[outcome], told[outcome].names[0])) for outcome in OUTCOMES}
    rows["error"] = _not_exported(_errors())
    return tuple(
        Recording(catalog.REQUESTS.name, expr, catalog.REQUESTS.help, {catalog.OUTCOME.name: name}) for name, expr in rows.items()
    )


def _errors() -> str:
    """What ended in an error, and what the HTTP layer answered with 5xx or refused, whichever is more: they overlap.

    All are 0 where the page does not have them yet, so that the first one is a rise. The larger of two counters never falls.
    """
    finished, answered, refused = (_row(*of) for of in (("finished_reason", "error"), ("handler", "error"), ("", "rejected")))
    none = f"{_own(catalog.RUNNING)} * 0"
    keys = tuple(Label(key, 0, "") for key in ("handler", "method", "status"))
    where = tuple(regex(Label(key, 0, ""), "|".join(values)) for key, values in answered.where)
    http = by("sum", PLACE, by("max", (*PLACE, *keys), _placed(_selector(answered.names[0], "", *where))))
    with_model = f"({none} + {on(*PLACE)} group_left () {http} or {none})"
    rejected = f"({_merged(refused, refused.names[0])} or {none})"
    return f"({_merged(finished, finished.names[0])} or {none})\n+ ({with_model} >= {rejected} or {rejected})"


def _row(where: str, outcome: str) -> Source:
    """The row of the table that tells this outcome by this label of the page; an empty one is none."""
    rows = (s for s in _REQUESTS if ("outcome", outcome) in s.fixed and s.scale > 0)
    return next(s for s in rows if where in [key for key, _ in s.where] or (not where and not s.where))


def _derived() -> tuple[Recording, ...]:
    def rate(metric: Metric, window: str) -> str:
        return f"rate({_own(metric)}[{window}])"

    hits, asked = (by("sum", WITH_MODEL, rate(metric, "5m")) for metric in (catalog.KV_HITS, catalog.KV_QUERIES))
    preempted = f'label_replace(clamp_max({rate(catalog.PREEMPTIONS, "2m")}, 1), "tk_of", "preemptions", "", "")'
    pressure = by("max", PLACE, f"{_own(catalog.KV_USAGE)} or {preempted}")
    return (
        Recording(
            catalog.KV_HIT_RATIO.name, f"{hits} / ({asked} > 0)", "Prefix cache hits per query over the last five minutes."
        ),
        Recording(catalog.VRAM_PRESSURE.name, pressure, "KV use or preemptions per second, at most 1, whichever is more."),
    )


def _states() -> tuple[Recording, ...]:
    """Exactly one of three is 1. What a state is called is the exporter's, and so is what is unknown."""
    state = catalog.BACKEND_STATE

    def recorded(value: str) -> str:
        return by("max", PLACE, _own(state, eq(catalog.STATE, value)))

    up = by("max", PLACE, _own(catalog.BACKEND_UP))
    waiting = by("sum", PLACE, _own(catalog.WAITING))
    busy = f"(({waiting} > bool 0) * {on(*PLACE)} (1 - {recorded('unknown')}))\nor {on(*PLACE)} {up} * 0"
    rows = {
        "unknown": f"({_still()} * 0 + 1)\nor {on(*PLACE)} (1 - {up})",
        "busy": busy,
        "serving": f"1 - {recorded('unknown')} - {recorded('busy')}",
    }
    answering = by("max", PLACE, f"{TARGETS} unless {on(CLUSTER, MODEL)} {EXPORTED}")
    return (
        Recording(catalog.BACKEND_UP.name, answering, "1 when Prometheus could scrape the engine."),
        *(Recording(state.name, expr, state.help, {catalog.STATE.name: name}) for name, expr in rows.items()),
    )


def _still() -> str:
    """Work in flight, now and before, and no token in between: busy or hung, and nobody asked."""

    def in_flight(offset: str) -> str:
        return by("sum", PLACE, f"{_own(catalog.RUNNING)}{offset} + {_own(catalog.WAITING)}{offset}")

    tokens = (catalog.GENERATED_TOKENS, catalog.PROMPT_TOKENS)
    moved = " + ".join(by("sum", PLACE, f"increase({_own(metric)}[{STILL}])") for metric in tokens)
    return f"({in_flight('')} > 0 and {in_flight(f' offset {STILL}')} > 0 and {moved} == 0)"
