"""What two readers could understand differently is no JSON here."""

from __future__ import annotations

import pytest

from tailkeeper_exporter.strict_json import loads


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a": 1, "a": 1}', "'a' is there twice"),
        (b'[{"b": {"c": 1, "c": 2}}]', "'c' is there twice"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b'"\xff"', "UTF-8"),
        (b"[" * 200_000, "."),
        (b"{} x", "."),
        (b"", "."),
    ],
)
def test_a_doubtful_document_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        loads(body)


def test_a_plain_document_is_read() -> None:
    assert loads('{"a": [1, 2.5, null, true, "é"]}'.encode()) == {"a": [1, 2.5, None, True, "é"]}
