"""What `doctor` can find, as values. No I/O.

Each ``Mistake`` has its entry in docs/troubleshooting.md, under its own name (a test holds that), so a finding can lead there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

PAGE = "docs/troubleshooting.md"


class Severity(StrEnum):
    WRONG = "wrong"  # what the file wants does not work
    WARNING = "warning"  # it works, and not as well as somebody may believe


class Mistake(StrEnum):
    """What can be the matter, by a name that is the heading of its entry in the documentation."""

    NO_BACKENDS = "no-backends"
    BACKEND_UNREACHABLE = "backend-unreachable"
    BACKEND_NOT_READY = "backend-not-ready"
    NOT_AN_ENGINE = "not-an-engine"
    METRICS_OFF = "metrics-off"
    WRONG_ENGINE = "wrong-engine"
    WRONG_MODEL = "wrong-model"
    PROBE_REFUSED = "probe-refused"
    PROBE_SLOW = "probe-slow"

    TOKEN_MISSING = "token-missing"  # noqa: S105  a name, not a token  # nosec B105
    TLS_FAILED = "tls-failed"
    CLOCK_SKEW = "clock-skew"

    GATEWAY_UNREACHABLE = "gateway-unreachable"
    GATEWAY_SOCKET_PERMISSION = "gateway-socket-permission"
    GATEWAY_READ_ONLY = "gateway-read-only"
    GATEWAY_UNREADABLE = "gateway-unreadable"
    GATEWAY_SERVER_UNKNOWN = "gateway-server-unknown"
    GATEWAY_CANNOT = "gateway-cannot"
    GATEWAY_IN_DOUBT = "gateway-in-doubt"
    REPLICAS_DIFFER = "replicas-differ"
    GATEWAY_UNUSED = "gateway-unused"
    NO_GATEWAY = "no-gateway"

    EXPORTER_NOT_RUNNING = "exporter-not-running"
    EXPORTER_UNREACHABLE = "exporter-unreachable"
    BACKEND_NOT_EXPORTED = "backend-not-exported"
    PORT_TAKEN = "port-taken"
    STALE_LIMIT_TOO_SMALL = "stale-limit-too-small"
    NO_EXEMPLARS = "no-exemplars"

    PROMETHEUS_UNREACHABLE = "prometheus-unreachable"
    PROMETHEUS_NOT_SCRAPING = "prometheus-not-scraping"
    RULES_NOT_LOADED = "rules-not-loaded"
    RULES_FAIL = "rules-fail"
    EXEMPLAR_STORAGE_OFF = "exemplar-storage-off"

    ALERTMANAGER_NOT_SET = "alertmanager-not-set"
    ALERTMANAGER_UNREACHABLE = "alertmanager-unreachable"
    NO_RECEIVER = "no-receiver"

    PAUSED = "paused"
    PAUSE_FILE = "pause-file"
    STATE_NOT_WRITABLE = "state-not-writable"
    STATE_NOT_OURS = "state-not-ours"
    LEDGER_NO_CLIENT = "ledger-no-client"
    LEDGER_UNREACHABLE = "ledger-unreachable"
    LEDGER_REFUSED = "ledger-refused"
    LEDGER_TLS = "ledger-tls"
    LEDGER_READ_ONLY = "ledger-read-only"
    LEDGER_NO_RIGHTS = "ledger-no-rights"
    LEDGER_NEWER = "ledger-newer"
    LEDGER_OTHER = "ledger-other"
    DISK_FULL = "disk-full"
    GPU_NOT_FOUND = "gpu-not-found"
    GPU_UNREADABLE = "gpu-unreadable"
    KV_SERVICE_FAILING = "kv-service-failing"
    COLLECTOR_UNREACHABLE = "collector-unreachable"
    DISCOVERY_FAILING = "discovery-failing"
    DISCOVERY_EMPTY = "discovery-empty"
    KUBERNETES_NO_ACCESS = "kubernetes-no-access"

    NOT_CHECKED = "not-checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    ``where`` is the path of the key that it is about, ``what`` and ``do`` are sentences for people, ``backend`` is empty where it
    is about no single one.
    """

    mistake: Mistake
    where: str
    what: str
    do: str
    severity: Severity = Severity.WRONG
    backend: str = ""

    @property
    def see(self) -> str:
        return f"{PAGE}#{self.mistake.value}"


Findings = list[Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """One connection, or one thing of this machine. ``area`` groups it on the terminal."""

    area: str
    where: str
    run: Callable[[], Awaitable[Findings]]
    backend: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of one check."""

    area: str
    where: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all of them. Seconds."""

    checks: tuple[Checked, ...]
    seconds: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The wrong ones first, each kind together, in the order of the list of mistakes; of a kind in the order of the file."""
        order = list(Mistake)
        found = [finding for check in self.checks for finding in check.findings]
        return tuple(sorted(found, key=lambda f: (f.severity is Severity.WARNING, order.index(f.mistake))))

    @property
    def wrong(self) -> int:
        return sum(finding.severity is Severity.WRONG for finding in self.findings)
