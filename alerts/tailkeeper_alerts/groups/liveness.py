"""Who answers and who can be seen: BackendHung, TelemetryLost, WatchdogDown. Blind is not dead, and dead is not busy."""

from __future__ import annotations

from tailkeeper_alerts.model import (
    BACKEND_TEMPLATE,
    FLEET_BOARD_UID,
    PERCENT_TEMPLATE,
    VALUE_TEMPLATE,
    WATCHDOG_BOARD_UID,
    Alert,
    Case,
    Expected,
    Group,
    Input,
    Recording,
    RuleSettings,
    Severity,
)
from tailkeeper_alerts.promql import CLUSTER, INSTANCE, JOB, by, count, eq, on, quoted, series
from tailkeeper_alerts.slo import PLACE
from tailkeeper_exporter.catalog import BACKEND, BACKEND_STATE, BACKEND_UP, STATE
from tailkeeper_watchdog.metrics import DOWN_PAGES_AFTER_S, OBSERVATION_AGE, SHARD, SHARD_BACKENDS, SHARDS, TICK_DURATION

WATCHDOG_JOB = "tailkeeper-watchdog"
"""The scrape job as the stack's own Prometheus has it. Under it a watchdog that never came up is known to be missing."""
REMEMBERED = "7d"
"""For so long a watchdog that vanished together with its scrape job is missed. One that there never was is not."""
LOST = "tailkeeper:telemetry_lost:backends"
EXPORTED = "tailkeeper:exported_backends:present"
HOSTILE_NAMES = ("no", "1e3", "a: b", "{{ $labels.x }}", 'say "hi"', "back\\slash", "0123", "ünïcode|*")
"""Names that broke other people's generators (field report D5); every one must come through rules and templates whole."""


def group(settings: RuleSettings) -> Group:
    lost, blind = _telemetry_lost(), _fleet_blind()
    hung, down, watchdog, shard = _hung(), _down(), _watchdog_down(), _shard_down()
    exported = Recording(EXPORTED, _exported_expr(), "1 for each backend of each exporter, and on while the exporter is down.")
    unseen = Recording(LOST, _lost_expr(settings), "1 for each backend that nobody can see.")
    cases = (*_hung_cases(hung), *_down_cases(down), *_lost_cases(lost, blind), *_watchdog_cases(watchdog), *_shard_cases(shard))
    return Group("tailkeeper-liveness", (hung, down, exported, unseen, lost, blind, watchdog, shard), cases)


def _hung() -> Alert:
    return Alert(
        name="BackendHung",
        expr=f"{by('max', PLACE, series(BACKEND_STATE, eq(STATE, 'hung')))} == 1",
        severity=Severity.PAGE,
        # The exporter needs 10 s without progress and an unanswered probe before it says hung; waiting on top of that
        # helps nobody. It outlives HealthDegraded, which it silences; else the score, which needs a moment to recover,
        # would be reported as a second incident just when the first is over.
        keep_firing_for_s=120,
        strategy="gpu_health_gate",
        labels={"dominant_factor": "hung"},
        summary=f"{BACKEND_TEMPLATE} is hung: it has work, makes no progress and does not answer our own probe",
        impact=f"Users whose requests are on {BACKEND_TEMPLATE} wait for an answer that does not come.",
        causes="A stuck GPU kernel, a deadlocked scheduler, or an engine waiting for another rank.",
        actions="Check that the watchdog drained it, then restart the engine; its requests are lost either way.",
        when="work in flight, no progress, and our own probe unanswered",
    )


def _down() -> Alert:
    """The same name as for a hung one, as the watchdog has it: what it does to users and what is to be done are alike."""
    return Alert(
        name="BackendHung",
        expr=f"{by('max', PLACE, series(BACKEND_STATE, eq(STATE, 'down')))} == 1",
        severity=Severity.PAGE,
        for_s=int(DOWN_PAGES_AFTER_S),
        keep_firing_for_s=120,
        strategy="gpu_health_gate",
        labels={"dominant_factor": "down"},
        summary=f"{BACKEND_TEMPLATE} is down: its engine refuses or does not take connections",
        impact=f"Users whose requests are sent to {BACKEND_TEMPLATE} get errors while it is in its pool.",
        causes="The engine crashed, ran out of memory, is being restarted, or its node is gone.",
        actions="Check that the watchdog drained it, read the end of the engine's log, then start it again.",
        when="the engine's port and health page do not answer",
    )


def _exported_expr() -> str:
    """What an exporter that is down told of when it was up, however long ago: from what this rule recorded before. An hour of
    that, so that it outlives a Prometheus that was away for a while."""
    scraped = (CLUSTER, JOB, INSTANCE)
    there = by("max", (*scraped, BACKEND), f"{series(BACKEND_UP)} * 0 + 1")
    kept = f"max_over_time({EXPORTED}[1h]) and {on(*scraped)} up == 0"
    return f"{there}\nor {on(*scraped, BACKEND)} ({kept})"


def _lost_expr(settings: RuleSettings) -> str:
    """Backends that nobody can see: unknown to their exporter, gone with it, or too old for the watchdog.

    ``up`` is Prometheus' own. A backend that left the configuration is not lost, so its exporter must be down; one that
    moved to another exporter is not lost, so nobody else may publish it.
    """
    unknown = f"{series(BACKEND_STATE, eq(STATE, 'unknown'))} == 1"
    gone = f"{EXPORTED} and {on(CLUSTER, JOB, INSTANCE)} up == 0"
    return (
        f"{by('max', PLACE, unknown)}\n"
        f"or {on(*PLACE)} {by('max', PLACE, f'{series(OBSERVATION_AGE)} > {settings.stale_after_s:g}')} > bool 0\n"
        f"or {on(*PLACE)} ({by('max', PLACE, gone)} unless {on(*PLACE)} {by('max', PLACE, series(BACKEND_UP))})"
    )


def _telemetry_lost() -> Alert:
    return Alert(
        name="TelemetryLost",
        expr=f"{LOST} == 1",
        severity=Severity.TICKET,
        for_s=60,
        summary=f"{BACKEND_TEMPLATE} cannot be seen any more",
        impact=f"Users of {BACKEND_TEMPLATE} may be well or not: nobody knows, and the watchdog leaves it as it is.",
        causes="The exporter is down or cut off, or the engine's metrics page is slow, gone or unreadable.",
        actions="Open the exporter's /healthz and the backend's metrics page; findings about it stay open meanwhile.",
        when="its state is unknown, its exporter is gone, or the watchdog's evidence is too old",
    )


def _fleet_blind() -> Alert:
    known = by("count", (CLUSTER,), by("count", PLACE, f"{series(BACKEND_UP)} or {LOST}"))
    lost = by("count", (CLUSTER,), f"{LOST} == 1")
    return Alert(
        name="TelemetryLost",
        expr=f"{lost} / {on(CLUSTER)} {known} > 0.5",
        severity=Severity.PAGE,
        for_s=60,
        per_backend=False,
        board=FLEET_BOARD_UID,
        summary=f"More than half of the fleet ({PERCENT_TEMPLATE}) cannot be seen",
        impact="Users may be hurt without anybody noticing: the watchdog takes nobody out while it is this blind.",
        causes="One cause for all: an exporter, the network between, or Prometheus itself.",
        actions="Do not drain by hand on old numbers; restore an exporter first, then look again.",
        when="more than half of all backends are lost",
    )


def _watchdog_down() -> Alert:
    ticks, here = count(TICK_DURATION), (CLUSTER,)
    vanished = f"{by('max', here, f'present_over_time({ticks}[{REMEMBERED}])')} unless {on(*here)} {by('max', here, ticks)}"
    return Alert(
        name="WatchdogDown",
        expr=(
            f"{by('sum', here, f'increase({ticks}[2m])')} == 0\n"
            f"or {on(*here)} ({vanished})\n"
            f"or {on(*here)} {by('max', here, f'up{{{eq(JOB, WATCHDOG_JOB).text}}}')} == 0"
        ),
        severity=Severity.PAGE,
        for_s=60,
        per_backend=False,
        board=WATCHDOG_BOARD_UID,
        summary="The watchdog is not ticking",
        impact="Users are not protected: nobody drains a hung backend, and our changes stay until their leases end.",
        causes="The watchdog is stopped, crashing at start, or stuck.",
        actions="Read its log and restart it; `tailkeeper release-all` takes our changes back if it cannot be started.",
        when=f"no tick in two minutes, or gone; never where there was none in {REMEMBERED} and no scrape job {WATCHDOG_JOB}",
    )


def _shard_down() -> Alert:
    """The same name as for a whole watchdog: its part of the fleet has none. Where all are gone the other rule says so.

    There is who ticked within two minutes, so that shards which are replaced one after the other are never missing.
    """
    ticked = f"increase({count(TICK_DURATION)}[2m]) > 0"
    ticking = f"present_over_time({series(SHARD_BACKENDS)}[2m]) and {on(CLUSTER, INSTANCE)} ({ticked})"
    there = by("count", (CLUSTER,), by("count", (CLUSTER, SHARD), ticking))
    return Alert(
        name="WatchdogDown",
        expr=f"{by('max', (CLUSTER,), series(SHARDS))} - {on(CLUSTER)} {there} > 0",
        severity=Severity.PAGE,
        for_s=60,
        per_backend=False,
        board=WATCHDOG_BOARD_UID,
        labels={"dominant_factor": "shard"},
        summary=f"{VALUE_TEMPLATE} of the watchdog's shards do not tick",
        impact="Users of the pools that fall to them are not protected, and our changes there stay until their leases end.",
        causes="A shard is stopped, crashing at start, stuck, or standing by because another number of shards still runs.",
        actions="See which one answers, read the log of the one that does not, and restart it.",
        when="fewer shards ticked within two minutes than there are",
    )


def _state(backend: str, values: str, state: str = "hung") -> Input:
    return Input(series(BACKEND_STATE, eq(BACKEND, backend), eq(STATE, state)), values)


def _hung_cases(hung: Alert) -> tuple[Case, ...]:
    names = tuple(sorted(HOSTILE_NAMES))
    return (
        Case("a hung backend pages at once", hung.name, (_state("a", "0x3 1x20"),), "2m", (Expected(hung, backend="a"),)),
        Case("a busy backend is not hung", hung.name, (_state("a", "0x40"), _state("a", "1x40", "busy")), "5m"),
        Case("a backend that answers again is quiet", hung.name, (_state("a", "1x4 0x40"),), "8m"),
        Case(
            "hostile backend names come through whole",
            hung.name,
            tuple(_state(name, "1x20") for name in names),
            "2m",
            tuple(Expected(hung, backend=name) for name in names),
        ),
    )


def _down_cases(down: Alert) -> tuple[Case, ...]:
    at = (_state("a", "0x3 1x20", "down"),)
    return (
        Case("an engine that stays down pages", down.name, at, "2m", (Expected(down, backend="a"),)),
        Case("a restart of less than half a minute is quiet", down.name, (_state("a", "0x8 1 0x20", "down"),), "2m15s"),
        Case("an engine that starts is not down", down.name, (_state("a", "1x40", "starting"),), "5m"),
    )


def _exporter(up: str, backend_up: str, backend: str = "a") -> tuple[Input, ...]:
    place = 'job="exporter", instance="node-1:9400"'
    return (Input(f"up{{{place}}}", up), Input(f"{series(BACKEND_UP)}{{backend={quoted(backend)}, {place}}}", backend_up))


def _lost_cases(lost: Alert, blind: Alert) -> tuple[Case, ...]:
    seen = tuple(_state(name, "0x40", "unknown") for name in ("b", "c"))
    ups = tuple(Input(series(BACKEND_UP, eq(BACKEND, name)), "1x40") for name in ("a", "b", "c"))
    age = Input(series(OBSERVATION_AGE, eq(BACKEND, "a")), "5x8 90x32")
    alone = Expected(lost, backend="a")
    both = (alone, Expected(blind, value="100%"))
    return (
        Case("one unreadable backend is a ticket", lost.name, (_state("a", "1x40", "unknown"), *seen, *ups), "5m", (alone,)),
        Case("evidence too old for the watchdog is a ticket", lost.name, (age, *seen, *ups), "5m", (alone,)),
        Case(
            "an exporter that vanished takes all it saw along",
            lost.name,
            _exporter("1x8 0x32", "1x8 stale"),
            "5m",
            both,
        ),
        Case("as long as it is away", lost.name, _exporter("1x8 0x800", "1x8 stale"), "3h", both),
        Case("a backend that left the configuration is not lost", lost.name, _exporter("1x40", "1x8 stale"), "5m"),
        Case("a backend that is down is not lost", lost.name, (_state("a", "1x40", "down"), *ups), "5m"),
        Case("half a minute of blindness is not an incident", lost.name, (_state("a", "0x16 1x2 0x22", "unknown"), *ups), "5m"),
    )


def _watchdog_cases(watchdog: Alert) -> tuple[Case, ...]:
    ticks, scraped = count(TICK_DURATION), f"up{{{eq(JOB, WATCHDOG_JOB).text}}}"
    down = (Expected(watchdog),)
    two = (
        Input(count(TICK_DURATION, eq(CLUSTER, "eu")), "0+3x60"),
        Input(count(TICK_DURATION, eq(CLUSTER, "us")), "0+3x8 24x40"),
    )
    return (
        Case("a watchdog that vanished pages", watchdog.name, (Input(ticks, "0+3x8 stale"),), "5m", down),
        Case("a watchdog that is there and does not tick pages", watchdog.name, (Input(ticks, "0+3x8 24x40"),), "8m", down),
        Case("a watchdog that was restarted is quiet", watchdog.name, (Input(ticks, "0+3x12 0+3x40"),), "5m"),
        Case("a ticking watchdog is quiet", watchdog.name, (Input(ticks, "0+3x60"),), "5m"),
        Case("one that is scraped and never came up pages", watchdog.name, (Input(scraped, "0x40"),), "5m", down),
        Case("whoever runs no watchdog is not told that it is down", watchdog.name, (Input('up{job="engines"}', "1x40"),), "5m"),
        Case("each cluster has its own", watchdog.name, two, "8m", (Expected(watchdog, cluster="us"),)),
    )


def _shard_cases(shard: Alert) -> tuple[Case, ...]:
    def of(index: int, ticks: str, there: str = "{}x40", number: int = 3, pod: str = "first") -> tuple[Input, ...]:
        """``there``: when its series are, with a place for their value."""
        place, named = f'instance="{pod}-{index}-of-{number}:8088"', f'shard="{index}/{number}"'
        return (
            Input(f"{series(SHARDS)}{{{place}}}", there.format(number)),
            Input(f'{series(SHARD_BACKENDS)}{{{place}, {named}, whose="own"}}', there.format(5)),
            Input(f'{series(SHARD_BACKENDS)}{{{place}, {named}, whose="elsewhere"}}', there.format(10)),
            Input(f"{count(TICK_DURATION)}{{{place}}}", ticks),
        )

    def gone(index: int) -> tuple[Input, ...]:
        return of(index, "0+3x8 stale", "{}x8 stale")

    two = (*of(0, "0+3x40"), *of(1, "0+3x40"))
    after = (part for index in range(2) for part in of(index, "_x11 0+3x28", "_x11 {}x28", number=2))
    replaced = tuple(
        part
        for index, until in enumerate((8, 11, 14, 17))  # each away for a minute, the next from then on: one is missing for three
        for part in (
            *of(index, f"0+3x{until} stale", f"{{}}x{until} stale", 4),
            *of(index, f"_x{until + 3} 0+3x30", f"_x{until + 3} {{}}x30", 4, "second"),
        )
    )
    down = (Expected(shard),)
    return (
        Case("shards that are replaced one after the other are quiet", shard.name, replaced, "4m45s"),
        Case("shards that all tick are quiet", shard.name, (*two, *of(2, "0+3x40")), "8m"),
        Case("a shard that vanished pages", shard.name, (*two, *gone(2)), "8m", down),
        Case("a shard that is there and does not tick pages", shard.name, (*two, *of(2, "0+3x8 24x32")), "8m", down),
        Case("with another number of shards none is missing", shard.name, (*gone(0), *gone(1), *gone(2), *after), "8m"),
    )
