"""Finding backends: a lister for each kind of source, the registry that merges their lists, the loop that asks them.

``LISTERS`` is the only list of kinds; a kind is one file, one settings class and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tailkeeper_exporter.discovery.base import DiscoveryError, Found, Lister, Listing
from tailkeeper_exporter.discovery.discoverer import Discoverer, Source, ask, ask_all
from tailkeeper_exporter.discovery.dns import DnsLister
from tailkeeper_exporter.discovery.file_sd import FileLister
from tailkeeper_exporter.discovery.kubernetes import KubernetesLister
from tailkeeper_exporter.discovery.prometheus import PrometheusLister
from tailkeeper_exporter.discovery.registry import Changes, Registry
from tailkeeper_exporter.settings import Discovery

LISTERS: dict[str, Callable[[Any], Lister]] = {
    "file_sd": FileLister,
    "dns": DnsLister,
    "kubernetes": KubernetesLister,
    "prometheus": PrometheusLister,
}


def sources_of(discovery: Iterable[Discovery]) -> tuple[Source, ...]:
    """A source for each entry of the configuration's ``discovery``, in its order. Asks nobody yet."""
    return tuple(
        Source(f"discovery.{index} ({entry.kind})", LISTERS[entry.kind](entry), entry.interval_s, entry.engine)
        for index, entry in enumerate(discovery)
    )


__all__ = [
    "LISTERS",
    "Changes",
    "Discoverer",
    "DiscoveryError",
    "Found",
    "Lister",
    "Listing",
    "Registry",
    "Source",
    "ask",
    "ask_all",
    "sources_of",
]
