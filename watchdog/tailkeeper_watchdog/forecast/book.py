"""All backends' forecasts: made every ``STEP_S``, judged when their time has come. Pure, bounded, cheap.

A step costs about 10 µs a backend: what is learned is learned elsewhere (``training``) and given in as plain numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log

from tailkeeper_watchdog.forecast import trust as trusting
from tailkeeper_watchdog.forecast.features import Known, Mark, Rows, bucket_p99_s, exact_p99_s, mark, rise, vector
from tailkeeper_watchdog.forecast.linear import LOWEST_S, Linear
from tailkeeper_watchdog.forecast.memory import Exhaustion, Point, exhaustion
from tailkeeper_watchdog.forecast.trust import State, Trust
from tailkeeper_watchdog.model import Backend, BackendObservation, RequestRecord, Situation

STEP_S = 15.0
AHEAD = 2
"""Steps: what is forecast is the P99 of the next half minute, and what it is forecast from is that of the last."""
HORIZON_S = AHEAD * STEP_S
SLACK_S = 7.5
"""By how much two steps may be longer or shorter and still be half a minute."""
MAX_BACKENDS = 2_000
"""Further ones have no forecast: the bound of the label ``backend``."""
MAX_LATENCIES = 1_000
MAX_GROUPS = 16
MAX_ROWS = 1_500
"""Of a group, and about an hour of it: in a large fleet only every so many forecasts is learned from."""
MIN_ROWS = 80
HOUR_STEPS = 240
POINTS = 21
"""Of memory: five minutes."""
NO_P99 = "fewer than 20 first tokens in the last half minute, or no fresh evidence"
NO_MODEL = "not trained yet: it takes 80 forecasts that have come true"

Group = tuple[str, Known]
"""Backends of one model of which the same is known share a forecast."""


@dataclass(slots=True)
class _Pending:
    """A forecast whose time has not come. ``predicted_s`` is None where there was no model yet."""

    at: float
    group: Group
    features: tuple[float, ...]
    last_value_s: float
    predicted_s: float | None


@dataclass(slots=True)
class _Track:
    """What is remembered of one backend."""

    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=AHEAD + 1))
    latencies: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))
    pending: deque[_Pending] = field(default_factory=lambda: deque(maxlen=AHEAD))
    p99_s: float | None = None
    p99_at: float = float("-inf")
    trust: Trust = field(default_factory=Trust)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What may be said of one backend. ``p99_s`` is None unless it may be relied upon to its ``error_bound_s``."""

    backend: str
    state: State
    why: str
    p99_s: float | None
    error_bound_s: float | None
    last_value_s: float | None
    last_value_bound_s: float | None
    matured: int


@dataclass(frozen=True, slots=True)
class Page:
    """One backend's forecast and the points that its memory is foreseen from: for whoever computes it in a thread.

    ``predicted_s`` is what is forecast whether it may be relied upon or not; it is for measuring only.
    """

    forecast: Forecast
    predicted_s: float | None
    points: tuple[Point, ...]


class ForecastBook:
    """``note`` each tick; ``trainable`` and ``learn`` for whoever trains; ``view`` for whoever asks."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}
        self._rows: dict[Group, deque[tuple[tuple[float, ...], float]]] = {}
        self._models: dict[Group, Linear] = {}
        self._step_at = float("-inf")
        self._step = 0
        self.training_error: str | None = None
        """Why the last training gave nothing; None while it works."""

    def note(self, situation: Situation) -> None:
        """One tick: latencies are taken at each, all else at each step."""
        now = situation.snapshot.now
        for name, records in situation.records.items():
            if name in self._tracks:
                _take(self._tracks[name], records, now)
        if now - self._step_at < STEP_S - 0.1:  # a tick that came a moment early is the step's
            return
        self._step_at, self._step = now, self._step + 1
        stride = max(1, ceil(len(situation.snapshot.backends) * HOUR_STEPS / MAX_ROWS))
        for number, backend in enumerate(situation.snapshot.backends[:MAX_BACKENDS]):
            track = self._tracks.get(backend.name)
            if track is None:
                track = self._tracks[backend.name] = _Track()
            seen = situation.fresh(backend.name)
            self._advance(track, backend, seen, now, learn=(self._step + number) % stride == 0)

    def _advance(self, track: _Track, backend: Backend, seen: BackendObservation | None, now: float, *, learn: bool) -> None:
        before_s = track.p99_s if now - track.p99_at <= STEP_S + SLACK_S else None
        track.p99_s = None
        if seen is None or seen.age_s is None:
            track.marks.clear()
            track.points.clear()
            return
        track.marks.append(mark(seen, now - seen.age_s))
        _remember_memory(track, backend, seen)
        track.p99_s, track.p99_at = _p99_s(track, now), now
        self._mature(track, now, learn=learn)
        if track.p99_s is not None and before_s is not None and len(track.marks) > 1:
            track.pending.append(self._forecast(track, backend.model, before_s, now))

    def _forecast(self, track: _Track, model: str, before_s: float, now: float) -> _Pending:
        assert track.p99_s is not None
        known, features = vector(track.marks[-1], track.marks[-2], track.p99_s, before_s)
        group = (model, known)
        linear = self._models.get(group)
        return _Pending(now, group, features, track.p99_s, None if linear is None else linear.predict_s(features))

    def _mature(self, track: _Track, now: float, *, learn: bool) -> None:
        while track.pending and now - track.pending[0].at > HORIZON_S - SLACK_S:
            made = track.pending.popleft()
            if track.p99_s is None or now - made.at > HORIZON_S + SLACK_S:
                continue
            if made.predicted_s is not None:
                track.trust.learn(track.p99_s, made.predicted_s, made.last_value_s)
            if learn:
                self._keep_row(made, track.p99_s)

    def _keep_row(self, made: _Pending, actual_s: float) -> None:
        rows = self._rows.get(made.group)
        if rows is None:
            if len(self._rows) >= MAX_GROUPS:
                return
            rows = self._rows[made.group] = deque(maxlen=MAX_ROWS)
        rows.append((made.features, log(max(LOWEST_S, actual_s))))

    def trainable(self) -> Mapping[Group, Rows]:
        """What a training should be given now."""
        return {
            group: Rows(tuple(r[0] for r in rows), tuple(r[1] for r in rows))
            for group, rows in self._rows.items()
            if len(rows) >= MIN_ROWS
        }

    def learn(self, group: Group, model: Linear) -> None:
        """Forecast with this model from the next step on."""
        if group in self._rows:
            self._models[group] = model

    def follow(self, gone: frozenset[str], backends: tuple[Backend, ...]) -> None:
        """Forget who is gone, and the groups of models that nobody serves any more."""
        for name in gone:
            self._tracks.pop(name, None)
        models = {b.model for b in backends}
        self._rows = {g: rows for g, rows in self._rows.items() if g[0] in models}
        self._models = {g: model for g, model in self._models.items() if g[0] in models}

    def view(self, backends: tuple[Backend, ...]) -> tuple[Page, ...]:
        """Everything as of the last step, in the order of the fleet."""
        tracks = ((b.name, track) for b in backends if (track := self._tracks.get(b.name)) is not None)
        return tuple(_page(name, track) for name, track in tracks)


def foreseen(page: Page) -> Exhaustion | None:
    """When this backend's memory will be full. Up to 0.1 ms: in a thread, for a fleet."""
    return exhaustion(page.points)


def _take(track: _Track, records: tuple[RequestRecord, ...], now: float) -> None:
    track.latencies.extend((now, r.ttft_s) for r in records if r.outcome == "ok" and r.ttft_s is not None)


def _p99_s(track: _Track, now: float) -> float | None:
    """P99 of the last half minute: of request records where there are any, else of the buckets."""
    while track.latencies and now - track.latencies[0][0] >= HORIZON_S:
        track.latencies.popleft()
    if track.latencies:
        return exact_p99_s([latency_s for _, latency_s in track.latencies])
    first, last = track.marks[0], track.marks[-1]
    if abs(last.at - first.at - HORIZON_S) > SLACK_S:
        return None
    return bucket_p99_s(first.first_tokens, last.first_tokens)


def _remember_memory(track: _Track, backend: Backend, seen: BackendObservation) -> None:
    newest, oldest = track.marks[-1], track.marks[0]
    used = newest.kv_usage if newest.kv_usage is not None else _device_use(seen)
    if used is not None:
        each, running, waiting = _request_bytes(backend.kv_bytes_per_token, oldest, newest), newest.running, newest.waiting
        if each is None or running is None or waiting is None:
            track.points.append(Point(newest.at, used))
        else:
            track.points.append(Point(newest.at, used, running * each, (running + waiting) * each))


def _device_use(seen: BackendObservation) -> float | None:
    """Share of memory in use of the fullest device, for engines that do not tell of their KV cache."""
    uses = [
        gpu.memory_used_bytes.value / gpu.memory_total_bytes.value
        for gpu in seen.gpus
        if gpu.memory_used_bytes.value is not None and gpu.memory_total_bytes.value
    ]
    return max(uses, default=None)


def _request_bytes(bytes_per_token: float | None, oldest: Mark, newest: Mark) -> float | None:
    """Mean bytes of the keys and values of a request in flight; half of its answer is there on average."""
    if bytes_per_token is None:
        return None
    finished = rise(oldest.finished, newest.finished)
    prompts = rise(oldest.prompt_tokens, newest.prompt_tokens)
    answers = rise(oldest.generated_tokens, newest.generated_tokens)
    if not finished or prompts is None or answers is None:
        return None
    return (prompts + answers / 2) / finished * bytes_per_token


def _page(name: str, track: _Track) -> Page:
    made = track.pending[-1] if track.pending and track.p99_s is not None else None
    state, trust = track.trust.state, track.trust
    why = trusting.SENTENCES[state]
    if made is None:
        why = NO_P99
    elif made.predicted_s is None:
        why = NO_MODEL
    predicted_s = None if made is None else made.predicted_s
    forecast = Forecast(
        backend=name,
        state=state,
        why=why,
        p99_s=predicted_s if state is State.ON else None,
        error_bound_s=trust.model.bound,
        last_value_s=track.p99_s,
        last_value_bound_s=trust.last_value.bound,
        matured=len(trust.model),
    )
    return Page(forecast, predicted_s, tuple(track.points))
