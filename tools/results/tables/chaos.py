"""The hour of random faults on real programs: what was done, what was asked, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, number

ASKED = (
    ("cap", "never more than 30 % of the pool out or cut, by HAProxy's own word", "looks at HAProxy"),
    (
        "the lease is there before the change",
        "each command that reached HAProxy had its lease in the ledger already",
        "changes sent to HAProxy",
    ),
    ("every change has a lease", "whatever is not as configured is as a lease in the ledger says", "looks at HAProxy"),
    ("leases end", "a lease that is not renewed is over by its time", "looks at HAProxy"),
    ("no unknown as zero", "nothing that cannot be known is shown as 0", "exporter pages read"),
    (
        "no tick is lost without a record",
        "each tick took place or is counted as missed, and why is known",
        "pages of the watchdog read",
    ),
    ("an exporter answers whatever hangs", "`/healthz` answers while it is neither stopped nor killed", None),
    ("nobody ends by itself", "no program ends but those that are killed", None),
    ("memory, files and threads are flat", "lives of 20 minutes and more", None),
    ("all is as before in the end", "every weight, no lease, no finding but explained ones", None),
)


def table(figures: Mapping[str, Any]) -> str:
    looks = figures["looks"]
    asked = [
        (what, f"{looks[seen]:,} times" if seen else "throughout", _verdict(figures["violations"][name]))
        for name, what, seen in ASKED
    ]
    return "\n\n".join(
        (
            f"{figures['minutes']:.0f} minutes, {figures['faults']['all']} faults, one every {figures['every_s']:g} s, "
            f"seed {figures['seed']}, {figures['backends']} backends.",
            markdown(("asked by an eye of its own", "how often", "violations"), asked),
            markdown(("fault", "times"), [(kind, str(n)) for kind, n in figures["faults"]["by_kind"].items()]),
            markdown(("seen", "figure"), _seen(figures)),
            markdown(
                ("process, longest life", "minutes", "memory, 2nd and last quarter", "a hour's slope", "files", "threads"),
                _grown(figures),
            ),
            *_left_out(figures),
        )
    )


def _verdict(violations: int) -> str:
    return "none" if violations == 0 else f"**{violations}**"


def _seen(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    requests, settled, healthz = figures["requests"], figures["settled"], figures["exporter_healthz_ms"]
    missed = ", ".join(f"{name} {n:,.0f}" for name, n in figures["ticks_missed"].items())
    lives = ", ".join(f"{name} {n}" for name, n in figures["lives"].items() if n > 1)
    return [
        ("most backends out or cut at once", str(figures["most_out"])),
        (
            "longest that a lease was neither renewed nor ended, while it could be",
            f"{figures['longest_lease_not_renewed_s']} s of {figures['lease_s']:g} s",
        ),
        ("values looked at while their page could not be read", f"{figures['values_watched_while_unreadable']:,}"),
        ("ticks missed and counted", missed),
        ("exporter's `/healthz`, p50, p99, longest", ", ".join(f"{number(healthz[q])} ms" for q in ("p50", "p99", "max"))),
        ("lives of those that were killed", lives),
        (
            "users' requests: sent, answered, within 1.2 s to the first token",
            f"{requests['sent']:,}, {requests['ok']:,}, {requests['within_slo']:,}",
        ),
        ("notifications that reached the receiver", f"{figures['notifications']['posts']:,}"),
        (
            "all as before after the last fault was healed",
            f"{settled['after_s']:.0f} s; it might take {settled['limit_s']:.0f} s",
        ),
        ("the most that a thread of the harness was late", f"{figures['machine_most_late_s']} s"),
    ]


def _grown(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, lives in figures["growth"].items():
        if name.startswith(("exporter", "watchdog", "shadow")):
            life = max(lives, key=lambda one: float(one["life_s"]))
            early, late = life["rss_mb"]
            slope = f"{life['slope_mb_per_hour']:+.1f} MB"
            pair = ["{:.0f}, {:.0f}".format(*life[what]) for what in ("fds", "threads")]
            rows.append((name, f"{life['life_s'] / 60:.0f}", f"{early:.0f} MB, {late:.0f} MB", slope, *pair))
    return rows


def _left_out(figures: Mapping[str, Any]) -> list[str]:
    return [f"Left out on this machine: {kind}: {why}." for kind, why in figures["left_out"].items()]
