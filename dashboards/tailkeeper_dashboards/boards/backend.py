"""One backend, stage by stage: is it bad, in which stage, for want of what, and what was done about it.

It answers for what is chosen above: with one backend its own numbers, with several those of all their requests together.
"""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from tailkeeper_alerts.promql import CLUSTER, by, series
from tailkeeper_dashboards import answers, assemble, gpu_lines, happened, queries, style, tiles
from tailkeeper_dashboards.latencies import N, quantiles
from tailkeeper_dashboards.panels import (
    LOKI,
    About,
    Builder,
    Place,
    big_number,
    board_url,
    fixed_color,
    fixed_lines,
    framed,
    lines,
    link,
    log_lines,
    log_list,
    now,
    target,
)
from tailkeeper_dashboards.settings import BACKEND_UID, FLEET_UID, GPU_UID, HEALING_UID, ROOT_CAUSE_UID, BoardSettings
from tailkeeper_dashboards.shapes import MOST_LINES
from tailkeeper_dashboards.tiles import elsewhere
from tailkeeper_exporter.catalog import (
    DECODE_TIME,
    GENERATED_TOKENS,
    ITL,
    KV_HIT_RATIO,
    KV_USAGE,
    LATENCY,
    PREEMPTIONS,
    PREFILL_TIME,
    PROMPT_TOKENS,
    QUEUE_TIME,
    RUNNING,
    TTFT,
    VRAM_PRESSURE,
    WAITING,
    Metric,
)
from tailkeeper_watchdog.metrics import FACTOR, HSCORE, HSCORE_FACTOR


def board(settings: BoardSettings) -> dashboard.Dashboard:
    """The board as a builder."""
    description = "One backend, stage by stage: what its users feel, where the time goes, what it lacks, and what was done."
    return assemble.board(settings, BACKEND_UID, description, PANELS)


def _state(settings: BoardSettings) -> Builder:
    about = About(
        "State now",
        "What the exporter says of each chosen backend, the most worrying first; grey is unknown, which is not dead.",
        style.COUNT_UNIT,
        "none seen",
        Place(0, 0, 5, 4),
    )
    panel = big_number(about, (), named=True).mappings([*style.state_ranks(), style.missing("unknown")])
    worst = f"topk(3, {queries.state_rank()})"
    return framed(panel.with_target(now(worst, legend="{{backend}}")), about, [link("Open Fleet SLA", board_url(FLEET_UID))])


def _latency(
    metric: Metric,
    title: str,
    sentence: str,
    place: Place,
    slo_s: float | None,
    settings: BoardSettings,
    counted: str = N,
) -> Builder:
    about = About(title, sentence, style.unit_of(metric), "no traffic", place)
    return quantiles(metric, about, elsewhere(settings, ROOT_CAUSE_UID), slo_s, counted)


def _ttft(settings: BoardSettings) -> Builder:
    sentence = (
        "From arrival to the first content token; diamonds are single requests, and a line flat on top means at least that."
    )
    return _latency(TTFT, "How long until the first token?", sentence, Place(0, 4, 8, 8), settings.slo_ttft_s, settings)


def _itl(settings: BoardSettings) -> Builder:
    sentence = "Time between two tokens of one answer: what makes text stutter while it is read."
    title = "How long between two tokens?"
    return _latency(ITL, title, sentence, Place(8, 4, 8, 8), settings.slo_itl_s, settings, "gaps (n)")


def _e2e(settings: BoardSettings) -> Builder:
    sentence = "From arrival to the last token; long answers take long, so judge it beside the time between tokens."
    return _latency(LATENCY, "How long is the whole answer?", sentence, Place(16, 4, 8, 8), settings.slo_e2e_s, settings)


def _queue(settings: BoardSettings) -> Builder:
    sentence = "Waiting for a place in the batch: grows when there is more work than the engine can take in."
    return _latency(QUEUE_TIME, "First stage: how long do requests queue?", sentence, Place(0, 12, 8, 7), None, settings)


def _prefill(settings: BoardSettings) -> Builder:
    sentence = "Computing the prompt: grows with long prompts, cache misses and slow clocks."
    return _latency(PREFILL_TIME, "Second stage: how long is prefill?", sentence, Place(8, 12, 8, 7), None, settings)


def _decode(settings: BoardSettings) -> Builder:
    sentence = "From the first to the last token: grows with long answers, full batches and slow clocks."
    return _latency(DECODE_TIME, "Third stage: how long is decode?", sentence, Place(16, 12, 8, 7), None, settings)


def _kv(settings: BoardSettings) -> Builder:
    about = About(
        "Is the KV cache full, and does it help?",
        "Share of KV blocks in use by the fullest backend, memory pressure, and the share of prompt tokens that the prefix cache "
        "already had.",
        style.unit_of(KV_USAGE),
        "not reported by this engine",
        Place(0, 19, 8, 7),
    )
    asked = (
        ("memory pressure", by("max", (CLUSTER,), series(VRAM_PRESSURE, *queries.OF_BACKEND)), style.ORANGE),
        ("blocks in use", by("max", (CLUSTER,), series(KV_USAGE, *queries.OF_MODEL)), style.QUANTILE_COLORS["P99"]),
        ("prefix cache hits", by("avg", (CLUSTER,), series(KV_HIT_RATIO, *queries.OF_MODEL)), style.GREY),
    )
    panel = fixed_lines(lines().min(0).max(1), asked)
    # Pressure is often the share of blocks itself: a broad line is seen beneath the other.
    panel = panel.override_by_name("memory pressure", [DynamicConfigValue("custom.lineWidth", 5)])
    return framed(panel, about, elsewhere(settings, GPU_UID))


def _in_it(settings: BoardSettings) -> Builder:
    about = About(
        "How much work is in it?",
        "Requests in the batch and requests that wait for a place; waiting ones that do not become fewer are the queue of above.",
        style.unit_of(RUNNING),
        "not reported by this engine",
        Place(8, 19, 8, 7),
    )
    asked = (
        ("running", by("sum", (CLUSTER,), series(RUNNING, *queries.OF_MODEL)), style.QUANTILE_COLORS["P95"]),
        ("waiting", by("sum", (CLUSTER,), series(WAITING, *queries.OF_MODEL)), style.ORANGE),
    )
    return framed(fixed_lines(lines().min(0).fill_opacity(15), asked), about, elsewhere(settings, ROOT_CAUSE_UID))


def _preempted(settings: BoardSettings) -> Builder:
    about = About(
        "Does it put requests back?",
        "Requests a second that were put back into the queue for want of KV memory; each of them is computed twice.",
        style.rate_unit_of(PREEMPTIONS),
        "not reported by this engine",
        Place(16, 19, 8, 7),
    )
    rate = by("sum", queries.BY_BACKEND, f"rate({series(PREEMPTIONS, *queries.OF_MODEL)}[$__rate_interval])")
    panel = lines().min(0).axis_soft_max(1).with_target(target(f"topk({MOST_LINES}, {rate})", legend="{{backend}}"))
    return framed(panel, about, elsewhere(settings, GPU_UID))


def _tokens(settings: BoardSettings) -> Builder:
    about = About(
        "How much does it get done?",
        "Tokens a second taken in as prompts and given out as answers.",
        style.rate_unit_of(GENERATED_TOKENS),
        "no traffic",
        Place(8, 26, 8, 8),
    )
    asked = (
        ("prompt tokens", _rate(PROMPT_TOKENS), style.GREY),
        ("generated tokens", _rate(GENERATED_TOKENS), style.QUANTILE_COLORS["P99"]),
    )
    return framed(fixed_lines(lines().min(0), asked), about, elsewhere(settings, FLEET_UID))


def _rate(metric: Metric) -> str:
    return by("sum", (CLUSTER,), f"rate({series(metric, *queries.OF_MODEL)}[$__rate_interval])")


def _score(settings: BoardSettings) -> Builder:
    about = About(
        "How healthy is it, and what costs it most?",
        "HScore from 0 to 1 with its four factors, of the worst chosen backend; the lowest factor is what pulls the score down.",
        style.unit_of(HSCORE),
        "no scores",
        Place(16, 26, 8, 8),
    )
    panel = lines().min(0).max(1).decimals(style.SCORE_DECIMALS)
    panel = panel.with_target(target(by("min", (CLUSTER,), series(HSCORE, *queries.OF_BACKEND)), "A", "HScore"))
    factors = by("min", (CLUSTER, FACTOR), series(HSCORE_FACTOR, *queries.OF_BACKEND))
    panel = panel.with_target(target(factors, "B", "{{factor}}"))
    strong = [fixed_color(style.NEUTRAL), DynamicConfigValue("custom.lineWidth", 3)]
    return framed(panel.override_by_name("HScore", strong), about, elsewhere(settings, FLEET_UID))


def _decisions(settings: BoardSettings) -> Builder:
    about = About(
        "What was decided about it, and why?",
        "What the watchdog found and decided about the chosen backends, newest first.",
        "none",
        "nothing was decided about it, or the log is not sent to Loki",
        Place(0, 45, 24, 8),
    )
    return framed(log_list().with_target(log_lines(happened.decisions())), about, elsewhere(settings, HEALING_UID), LOKI)


def _of_gpu(panel: gpu_lines.PanelOfGpu, place: Place) -> assemble.PanelOf:
    return lambda settings: panel(elsewhere(settings, GPU_UID), place, gpu_lines.Chosen(queries.OF_BACKEND, each_gpu=True))


PANELS: tuple[assemble.PanelOf, ...] = (
    _state,
    partial(tiles.slowest, place=Place(5, 0, 7, 4)),
    partial(tiles.sla, place=Place(12, 0, 4, 4)),
    partial(tiles.findings, place=Place(16, 0, 4, 4)),
    partial(tiles.actions, place=Place(20, 0, 4, 4)),
    _ttft,
    _itl,
    _e2e,
    _queue,
    _prefill,
    _decode,
    _kv,
    _in_it,
    _preempted,
    partial(answers.outcomes, place=Place(0, 26, 8, 8)),
    _tokens,
    _score,
    partial(answers.states, place=Place(0, 34, 24, 4)),
    _of_gpu(gpu_lines.utilization, Place(0, 38, 6, 7)),
    _of_gpu(gpu_lines.memory, Place(6, 38, 6, 7)),
    _of_gpu(gpu_lines.clocks, Place(12, 38, 6, 7)),
    _of_gpu(gpu_lines.held_back, Place(18, 38, 6, 7)),
    _decisions,
)
