"""Prometheus text and OpenMetrics pages, hostile ones too, into samples.

Bytes in, ``Page`` out; no I/O, no clock, no engine's name. A page is either understood to its last line or refused as
a whole with a reason; within an understood page a bad line costs itself and is counted. Metric types come from the
caller's ``wanted`` mapping, never from the wire.

A steady page costs one split, one dictionary lookup and one ``float`` per line: the text in front of the value is
parsed once and remembered. That memory is bounded (``MAX_CACHED``, ``MAX_BYTES`` characters) and emptied when full.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType

from tailkeeper_exporter.catalog import Kind
from tailkeeper_exporter.page import MAX_BYTES, MAX_LINE_CHARS, MAX_LINES, Labels, Page, PageError, Part, Reason, SeriesKey

__all__ = [
    "MAX_BYTES",
    "MAX_LINES",
    "MAX_LINE_CHARS",
    "Labels",
    "Page",
    "PageError",
    "PageParser",
    "Part",
    "Reason",
    "SeriesKey",
    "canonical",
    "page_of",
]


MAX_CACHED = 20_000
"""Series texts remembered per parser, twenty times those of vLLM's page with traffic."""


class _Mark(Enum):
    COMMENT = 0
    UNWANTED = 1
    MALFORMED = 2


_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
# Possessive throughout: a line of 64 kiB made of quotes must not cost a backtracking search.
_LINE = re.compile(
    rf"[ \t]*+(?P<series>(?P<name>{_NAME})?+(?:[ \t]*+\{{(?P<labels>(?:[^\"}}]|{_QUOTED})*+)\}})?+)"
    r"(?:[ \t]++|(?<=\}))(?P<value>[^ \t]++)(?:[ \t]++[-+0-9.eE]++)?+[ \t]*+(?:#[ \t]*+\{.*)?+$"
)
_ITEM = re.compile(
    rf"[ \t]*+(?:(?P<label>[a-zA-Z_][a-zA-Z0-9_]*+|{_QUOTED})[ \t]*+=[ \t]*+(?P<value>{_QUOTED})|(?P<name>{_QUOTED}))"
    r"[ \t]*+(?:,|$)"
)
_ESCAPE = re.compile(r'\\([\\"n])')
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_SUFFIXES = (("_bucket", Part.BUCKET), ("_sum", Part.SUM), ("_count", Part.COUNT))


class PageParser:
    """Parser for the pages of one backend. Not for use by two threads at once.

    ``wanted`` maps canonical names (``:`` written ``_``) to their kind; a histogram's bucket, sum and count series
    belong to its name. Without ``wanted`` every sample is kept under its own name, as a gauge.
    """

    def __init__(self, wanted: Mapping[str, Kind] | None = None) -> None:
        self._wanted = None if wanted is None else dict(wanted)
        self._cache: dict[str, SeriesKey | _Mark] = {}
        self._interned: dict[SeriesKey, SeriesKey] = {}
        self._cached_chars = 0
        self._clearings = 0

    def parse(self, body: bytes, open_metrics: bool = False) -> Page:
        """The samples of one page. Raises ``PageError`` where the page as a whole cannot be trusted.

        A body whose last line has no line feed is refused as ``truncated`` even where that line parses: ``12`` may be
        the beginning of ``1234``. Only ``# EOF`` may end a page without one. With ``open_metrics`` (the response said
        so in its content type) a page without ``# EOF`` is truncated too.
        """
        lines = _lines(body)
        problems: Counter[Reason] = Counter()
        if max(map(len, lines)) > MAX_LINE_CHARS:
            short = [line for line in lines if len(line) <= MAX_LINE_CHARS]
            problems[Reason.LINE_TOO_LONG] = len(lines) - len(short)
            lines = short
        clearings = self._clearings
        keys, numbers, others = self._scan(lines, problems)
        values = _plain_values(keys, numbers) if clearings == self._clearings else None
        dropped: list[tuple[SeriesKey, Reason]] = []
        kept = zip(keys, values, strict=True) if values else _checked(keys, numbers, problems, dropped)
        samples = tuple(kept)
        series = len(samples) + len(dropped) + _count_samples(others, problems)
        _refuse_partial(lines, series, problems, open_metrics)
        return Page(samples, MappingProxyType(dict(problems)), tuple(dropped), series)

    def _scan(self, lines: list[str], problems: Counter[Reason]) -> tuple[list[SeriesKey], list[str], list[str]]:
        """Keys and value texts of the wanted lines, and value texts of the others. The hot loop."""
        keys: list[SeriesKey] = []
        numbers: list[str] = []
        others: list[str] = []
        remembered = self._cache.get
        for line in lines:
            series, _, number = line.rpartition(" ")
            entry = remembered(series)
            if entry is None:
                entry, number = self._learn(line)
            if type(entry) is SeriesKey:
                keys.append(entry)
                numbers.append(number)
            elif entry is _Mark.UNWANTED:
                others.append(number)
            elif entry is _Mark.MALFORMED:
                problems[Reason.MALFORMED] += 1
        return keys, numbers, others

    def _learn(self, line: str) -> tuple[SeriesKey | _Mark, str]:
        """A line seen for the first time, or one with a timestamp, an exemplar or unusual spacing."""
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            self._remember(line.rpartition(" ")[0], _Mark.COMMENT)
            return _Mark.COMMENT, ""
        match = _LINE.match(line)
        if match is None or not match["series"]:
            return _Mark.MALFORMED, ""
        plain = match.end("value") == len(line) and line[match.start("value") - 1] == " "
        text = line[: match.start("value") - 1] if plain else match["series"]
        entry = self._cache.get(text) or self._key(match["name"], match["labels"] or "")
        if entry is not _Mark.MALFORMED:
            self._remember(text, entry)
        return entry, match["value"]

    def _remember(self, text: str, entry: SeriesKey | _Mark) -> None:
        # The empty text stands in front of every line without a space and says nothing.
        if not text or text in self._cache:
            return
        self._cached_chars += len(text)
        if len(self._cache) >= MAX_CACHED or self._cached_chars > MAX_BYTES:
            self._cache.clear()
            self._interned.clear()
            self._cached_chars = len(text)
            self._clearings += 1
        self._cache[text] = entry
        if isinstance(entry, SeriesKey):
            self._interned[entry] = entry

    def _key(self, name: str | None, labels_text: str) -> SeriesKey | _Mark:
        try:
            name, labels = _labels(name, labels_text)
        except ValueError:
            return _Mark.MALFORMED
        if self._wanted is None:
            key = SeriesKey(name, labels)
        else:
            family, kind, part = self._resolve(name)
            if kind is None:
                return _Mark.UNWANTED
            if part is Part.BUCKET:
                return self._bucket(family, labels)
            key = SeriesKey(family, labels, kind, part)
        return self._interned.get(key, key)

    def _resolve(self, name: str) -> tuple[str, Kind | None, Part]:
        """Family, kind (None where not wanted) and part of a sample's canonical name."""
        wanted = self._wanted or {}
        kind = wanted.get(name)
        if kind is not None and kind is not Kind.HISTOGRAM:
            return name, kind, Part.VALUE
        for suffix, part in _SUFFIXES:
            if name.endswith(suffix) and wanted.get(name.removesuffix(suffix)) is Kind.HISTOGRAM:
                return name.removesuffix(suffix), Kind.HISTOGRAM, part
        return name, None, Part.VALUE

    def _bucket(self, family: str, labels: Labels) -> SeriesKey | _Mark:
        bound = _number(dict(labels).get("le", ""))
        if bound is None or math.isnan(bound):
            return _Mark.MALFORMED
        rest = tuple(pair for pair in labels if pair[0] != "le")
        key = SeriesKey(family, rest, Kind.HISTOGRAM, Part.BUCKET, bound)
        return self._interned.get(key, key)


def page_of(samples: Iterable[tuple[SeriesKey, float]]) -> Page:
    """A page from samples that somebody else has parsed, such as a Prometheus server: judged as if they stood on one."""
    problems: Counter[Reason] = Counter()
    kept: dict[SeriesKey, float] = {}
    dropped: list[tuple[SeriesKey, Reason]] = []
    for key, value in samples:
        reason = Reason.DUPLICATE if key in kept else _objection(key, value)
        if reason is None:
            kept[key] = value
            continue
        problems[reason] += 1
        if reason is not Reason.DUPLICATE:
            dropped.append((key, reason))
    return Page(tuple(kept.items()), MappingProxyType(dict(problems)), tuple(dropped), len(kept) + len(dropped))


def canonical(name: str) -> str:
    """A metric's name with ``:``, and whatever else a quoted name may hold, written ``_``."""
    return _NOT_A_NAME.sub("_", name)


def _lines(body: bytes) -> list[str]:
    if len(body) > MAX_BYTES:
        raise PageError(Reason.TOO_LARGE, f"{len(body)} bytes")
    start = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not start and not body.strip():
        raise PageError(Reason.EMPTY)
    if start in (b"<", b'"', b"["):
        raise PageError(Reason.NOT_EXPOSITION, f"it begins with {start.decode()}")
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = (text.replace("\r\n", "\n") if "\r" in text else text).split("\n")
    if len(lines) > MAX_LINES:
        raise PageError(Reason.TOO_MANY_SERIES, f"{len(lines)} lines")
    return lines


def _refuse_partial(lines: list[str], series: int, problems: Counter[Reason], open_metrics: bool) -> None:
    """Raise for a page without samples, and for one that stops before its end."""
    if not series and problems[Reason.MALFORMED]:
        raise PageError(Reason.NOT_EXPOSITION, f"{problems[Reason.MALFORMED]} lines, none of them a sample")
    ends_with_eof = "# EOF" in (line.strip() for line in lines[-2:])
    ends_with_line_feed = bool(lines) and not lines[-1]
    if not ends_with_eof and (open_metrics or not ends_with_line_feed):
        raise PageError(Reason.TRUNCATED, "no # EOF at its end" if open_metrics else "no line feed at its end")
    if not series:
        raise PageError(Reason.EMPTY, "no sample in it")


def _number(text: str) -> float | None:
    """The value, NaN and infinities included; None for what only Python takes for a number (``1_000``, ``١``)."""
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _numbers(texts: list[str]) -> list[float] | None:
    """All values at once; None where one of them is not a number."""
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        return None
    try:
        return list(map(float, texts))
    except ValueError:
        return None


def _plain_values(keys: list[SeriesKey], numbers: list[str]) -> list[float] | None:
    """All values at once where none of them needs a second look, else None. Keys are interned, so identity is equality."""
    values = _numbers(numbers)
    if not values or len(set(map(id, keys))) != len(keys):
        return None
    # A NaN or an infinity anywhere makes the sum not finite.
    return values if math.isfinite(sum(values)) and min(values) >= 0 else None


def _count_samples(texts: list[str], problems: Counter[Reason]) -> int:
    """How many lines of unwanted series are samples; the others are counted as malformed."""
    if _numbers(texts) is not None:
        return len(texts)
    malformed = sum(_number(text) is None for text in texts)
    problems[Reason.MALFORMED] += malformed
    return len(texts) - malformed


def _checked(
    keys: list[SeriesKey], numbers: list[str], problems: Counter[Reason], dropped: list[tuple[SeriesKey, Reason]]
) -> Iterator[tuple[SeriesKey, float]]:
    """The samples one by one, each bad one counted and noted."""
    seen: set[SeriesKey] = set()
    for key, number in zip(keys, numbers, strict=True):
        value = _number(number)
        if key in seen:
            problems[Reason.MALFORMED if value is None else Reason.DUPLICATE] += 1
            continue
        seen.add(key)
        reason = _objection(key, value)
        if reason is not None:
            problems[reason] += 1
            dropped.append((key, reason))
        elif value is not None:
            yield key, value


def _objection(key: SeriesKey, value: float | None) -> Reason | None:
    if value is None:
        return Reason.MALFORMED
    if not math.isfinite(value):
        return Reason.NON_FINITE
    # A histogram's sum may fall below zero (field report A7); whether it may here is for the normaliser to judge.
    if value < 0 and key.kind is not Kind.GAUGE and key.part is not Part.SUM:
        return Reason.NEGATIVE
    return None


def _labels(name: str | None, text: str) -> tuple[str, Labels]:
    """Canonical name and sorted labels. Raises ValueError for what is not a label list."""
    labels: dict[str, str] = {}
    text = text.rstrip(" \t")
    position = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise ValueError("not a label")
        position = item.end()
        if item["name"] is not None:
            if name is not None:
                raise ValueError("two names")
            name = _unquoted(item["name"])
        else:
            label = _unquoted(item["label"]) if item["label"].startswith('"') else item["label"]
            if label in labels:
                raise ValueError("label twice")
            labels[label] = _unquoted(item["value"])
    if not name:
        raise ValueError("no name")
    return canonical(name), tuple(sorted(labels.items()))


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], inner) if "\\" in inner else inner
