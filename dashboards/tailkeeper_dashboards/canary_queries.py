"""PromQL that compares canary revisions. Pure text.

Requests carry their revision, so counts and errors are exact. Latencies do not: a histogram is a backend's. So a backend's
latencies count for the revision that most of its requests were of, which is exact where a backend serves one revision, as
canaries usually are deployed, and a mixture where clients choose the revision by header. The access log has no such limit.
"""

from __future__ import annotations

from tailkeeper_alerts.promql import CLUSTER, LE, Matcher, bucket, by, count, on, regex, series
from tailkeeper_dashboards import queries
from tailkeeper_exporter.catalog import CANARY, MODEL, REQUESTS, TTFT

IN_REVISIONS = regex(CANARY, "$canary")
BY_POOL = (CLUSTER, MODEL)
BY_REVISION = (CLUSTER, MODEL, CANARY)
EACH = on(*BY_REVISION)
LEAST_REQUESTS = 100
"""Of fewer, one request in a hundred says nothing."""


def called(expression: str) -> str:
    """A request without a revision has a word for it, or its line would have no name."""
    return f'label_replace({expression}, "{CANARY.name}", "no revision", "{CANARY.name}", "")'


def rate(*matchers: Matcher) -> str:
    """Finished requests a second by revision."""
    selector = series(REQUESTS, *queries.OF_MODEL, IN_REVISIONS, *matchers)
    return by("sum", BY_REVISION, f"rate({selector}[$__rate_interval])")


def requests(window: str, *matchers: Matcher) -> str:
    """Finished requests by revision."""
    return _requests(window, IN_REVISIONS, *matchers)


def stable(window: str) -> str:
    """Of each model the revision that most requests were of: what the others are compared with, chosen or not."""
    return by("topk", BY_POOL, _requests(window), "1")


def error_ratio(window: str) -> str:
    """Failed and rejected requests as a share of all, by revision."""
    return f"({requests(window, queries.FAILED)} / ({requests(window)} > 0))"


def errors_more_than_stable(window: str) -> str:
    """The difference to the stable revision, of those with enough requests."""
    every = f"{_requests(window, queries.FAILED)} / ({_requests(window)} > 0)"
    base = f"({every} and {EACH} {stable(window)})"
    return f"({error_ratio(window)} and {EACH} {enough(window)}) - {on(*BY_POOL)} group_left () {base}"


def p99(window: str) -> str:
    """P99 of the first token in seconds, by revision; nothing where there was no traffic."""
    return f"({_p99(window)} and {EACH} {requests(window)})"


def slower_than_stable(window: str) -> str:
    """The difference to the stable revision in seconds, of those with enough requests."""
    known = f"({p99(window)} and {EACH} {enough(window)})"
    return f"{known} - {on(*BY_POOL)} group_left () ({_p99(window)} and {EACH} {stable(window)})"


def canaries(expression: str, window: str) -> str:
    """``expression`` without the stable revisions."""
    return f"(({expression}) unless {EACH} {stable(window)})"


def enough(window: str) -> str:
    return f"{requests(window)} >= {LEAST_REQUESTS}"


def _requests(window: str, *matchers: Matcher) -> str:
    return by("sum", BY_REVISION, f"increase({series(REQUESTS, *queries.OF_MODEL, *matchers)}[{window}])")


def _p99(window: str) -> str:
    mostly = by("topk", queries.BY_BACKEND, by("sum", (*queries.BY_BACKEND, CANARY), f"increase({_all(window)})"), "1")
    times = f"* {queries.EACH_BACKEND} group_left ({CANARY.name}) (0 * {mostly} + 1)"
    buckets = by("sum", (*queries.BY_MODEL, LE), f"rate({bucket(TTFT, *queries.OF_MODEL)}[{window}])")
    seen = by("sum", BY_REVISION, f"{by('sum', queries.BY_MODEL, f'rate({count(TTFT, *queries.OF_MODEL)}[{window}])')} {times}")
    return f"(histogram_quantile(0.99, {by('sum', (*BY_REVISION, LE), f'{buckets} {times}')}) and {seen} > 0)"


def _all(window: str) -> str:
    return f"{series(REQUESTS, *queries.OF_MODEL)}[{window}]"
