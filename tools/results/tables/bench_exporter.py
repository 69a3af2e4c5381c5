"""The exporter's cost: reading a page, a backend at one read a second, and its own page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.results.markdown import markdown, mebibytes


def table(figures: Mapping[str, Any]) -> str:
    parse, loop, render = figures["parse"], figures["loop"], figures["render"]
    return markdown(
        ("what", "ours", "`prometheus_client`", "ratio"),
        (
            (
                f"parse vLLM's page ({parse['page_bytes'] / 1e3:.0f} kB, {parse['samples']} samples), median",
                f"{parse['ours_ms']['median']:.2f} ms",
                f"{parse['prometheus_client_ms']['median']:.1f} ms",
                f"{parse['ratio']:.1f}",
            ),
            (
                f"write ours of {render['backends']} backends ({render['page_bytes'] / 1e3:.0f} kB, {render['series']} samples)",
                f"{render['ours_ms']:.1f} ms",
                f"{render['prometheus_client_ms']:.1f} ms",
                f"{render['ratio']:.1f}",
            ),
            (
                f"a backend at 1 Hz, pages of {loop['page_bytes'] / 1e3:.0f} kB, probes included",
                f"{100 * loop['cpu_ratio_per_backend']:.2f} % of a core",
                "",
                "",
            ),
            (f"memory, growth over {loop['seconds']:.0f} s", mebibytes(loop["rss_growth_bytes"]), "", ""),
        ),
    )
