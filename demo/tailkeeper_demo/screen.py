"""The terminal: the fleet as a table on top, the story under it. Updates in place; plain lines where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tailkeeper_demo.narrative import Event, within

STATE_STYLE = {
    "serving": "green",
    "busy": "yellow",
    "starting": "blue",
    "hung": "bold red",
    "down": "red",
    "misconfigured": "magenta",
    "unknown": "bright_black",
}
WORD_STYLE = {
    "fault": "magenta",
    "found": "dark_orange",
    "acted": "blue",
    "return": "blue",
    "limited": "blue",
    "cached": "blue",
    "shed": "blue",
    "noted": "bright_black",
    "restored": "green",
    "users": "bold",
    "recovered": "green",
    "released": "green",
    "refused": "yellow",
    "failed": "red",
    "expired": "yellow",
    "contended": "red",
}
MAX_LINES = 18


class Screen:
    """``update`` it with documents, ``tell`` it events; use as a context manager."""

    def __init__(self, color: bool) -> None:
        self._console = Console(no_color=not color, highlight=False, file=sys.stdout)
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        self._events: list[Event] = []
        self._fleet: Mapping[str, Any] | None = None
        self._load: Mapping[str, Any] | None = None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            for event in self._events:
                self._console.print(_line(event))

    def say(self, text: str) -> None:
        """A line that is not an event: progress of the start, addresses."""
        self._console.print(Text(text, style="bright_black"))

    def tell(self, event: Event) -> None:
        self._events.append(event)
        if self._live is None:
            self._console.print(_line(event), soft_wrap=True)
        self._refresh()

    def update(self, fleet: Mapping[str, Any], load: Mapping[str, Any]) -> None:
        self._fleet, self._load = fleet, load
        self._refresh()

    def box(self, title: str, lines: list[str], good: bool) -> None:
        self._console.print(Panel("\n".join(lines), title=title, border_style="green" if good else "red", expand=False))

    def _refresh(self) -> None:
        if self._live is not None and self._fleet is not None:
            lines: list[RenderableType] = [_line(e) for e in self._events[-MAX_LINES:]]
            self._live.update(Group(_table(self._fleet, self._load), *lines), refresh=True)


def _line(event: Event) -> Text:
    minutes, seconds = divmod(int(event.at_s), 60)
    text = Text(f"{minutes:02d}:{seconds:02d}  ", style="bright_black")
    text.append(f"{event.word:<10}", style=WORD_STYLE.get(event.word, ""))
    text.append(event.text)
    return text


def _table(fleet: Mapping[str, Any], load: Mapping[str, Any] | None) -> Table:
    table = Table(title=_title(load), title_justify="left", title_style="bold", expand=False)
    for name in ("backend", "state", "HScore", "P99 first token", "run / wait", "KV", "GPU", "weight now"):
        table.add_column(name, justify="left" if name in ("backend", "state") else "right")
    for b in fleet["backends"]:
        table.add_row(b["backend"], Text(b["state"], style=STATE_STYLE.get(b["state"], "")), *_numbers(b))
    return table


def _title(load: Mapping[str, Any] | None) -> str:
    if load is None:
        return "the load is starting"
    share, n = within(load["buckets"][-6:-1])
    return f"{load['rate_per_s']:.3g} requests/s · within SLA, last 5 s: {share:.1%} (n = {n})"


def _numbers(backend: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    score, p99, actual = backend["hscore"], backend["p99_s"], backend["actual"]
    wait = "no traffic" if p99 is None else f"{'≥ ' if backend['p99_saturated'] else ''}{_time(p99)} (n={backend['samples']})"
    share = "unknown" if actual["weight"] is None else f"{actual['weight']:.0%}"
    return (
        "unknown" if score is None else f"{score:.2f}",
        wait,
        f"{_count(backend['running'])} / {_count(backend['waiting'])}",
        _percent(backend["kv_usage_ratio"]),
        _percent(backend["gpu_utilization_ratio"]),
        "drained" if actual["admission"] == "drain" else share,
    )


def _time(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
