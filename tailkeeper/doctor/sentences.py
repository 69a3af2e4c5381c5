"""Findings that several checks have in common: a server that cannot be asked, a clock that differs. Pure."""

from __future__ import annotations

from tailkeeper.asking import AskError, Clock, Trouble
from tailkeeper.doctor.findings import Finding, Mistake, Severity

MAX_SKEW_S = 2.0
"""A `Date` header counts whole seconds, and NTP keeps clocks within milliseconds: more than this is no measuring error."""
BAD_FILE = "make that file what its key says, readable for whoever runs this: a token alone on one line, certificates as PEM"


def unreachable(error: AskError, mistake: Mistake, key: str, url: str, who: str, auth: str, backend: str = "") -> Finding:
    """``key`` is the path of the URL, ``auth`` that of its credentials, ``who`` names the kind of server in sentences."""
    what = f"{url} {error}"
    match error.trouble:
        case Trouble.CREDENTIAL:
            return Finding(Mistake.TOKEN_MISSING, auth, what, BAD_FILE, backend=backend)
        case Trouble.DENIED:
            do = f"put a token that {who} accepts into a file, and name it in {auth}"
            return Finding(Mistake.TOKEN_MISSING, auth, what, do, backend=backend)
        case Trouble.TLS:
            return tls_failed(key, auth.replace(".api_key_file", ".auth"), what, backend)
        case Trouble.NO_SUCH_HOST:
            do = f"correct the name in {key}; inside compose or Kubernetes it is the service's name, outside it is not"
        case Trouble.REFUSED:
            do = f"start {who}, or correct host and port in {key}; in a container 127.0.0.1 is the container itself"
        case Trouble.SILENT:
            do = f"look whether {who} is stuck, or a firewall or network policy drops the packets; then correct {key}"
        case Trouble.STATUS:
            do = f"correct {key}: something answers there, and not as {who} does"
        case _:
            do = f"correct {key}: is the port {who}'s, and is it http or https there?"
    return Finding(mistake, key, what, do, backend=backend)


def tls_failed(key: str, auth: str, said: str, backend: str = "") -> Finding:
    """``said`` ends in `TLS: `, what is wrong, and mostly what to do (`tls_trouble`): an authority mends no old certificate."""
    before, is_sorted, trouble = said.rpartition("TLS: ")
    wrong, has_advice, do = trouble.partition("; ")
    if not (is_sorted and has_advice):
        do = f"name its certificate's authority in {auth}.ca_file; where it asks for yours, cert_file and key_file, too"
        return Finding(Mistake.TLS_FAILED, key, said, do, backend=backend)
    return Finding(Mistake.TLS_FAILED, key, f"{before}TLS: {wrong}", do.replace(" auth.", f" {auth}."), backend=backend)


def skewed(clock: Clock | None, where: str, who: str, severity: Severity = Severity.WARNING, backend: str = "") -> list[Finding]:
    """Nothing where the clocks agree, or theirs is not told."""
    ahead = 0.0 if clock is None else clock.ahead_s
    if abs(ahead) <= MAX_SKEW_S:
        return []
    direction = "ahead of" if ahead > 0 else "behind"
    what = f"the clock of {who} is at least {abs(ahead):.0f} s {direction} this machine's"
    do = "let NTP (chrony, systemd-timesyncd) keep both clocks; `timedatectl` says which one is wrong"
    return [Finding(Mistake.CLOCK_SKEW, where, what, do, severity, backend)]
