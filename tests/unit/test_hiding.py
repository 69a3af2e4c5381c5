"""What servers say is told without anybody's credentials, and otherwise as it was said."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.hiding import HIDDEN, hidden, hidden_of

TOKEN = "ab/c+d=efghi"
PAIR = "tailkeeper:pa ss/w0rd%"
HEADERS = {
    "Authorization": f"Bearer {TOKEN}",
    "X-Api-Key": "key-of-ours-1234",
    "X-Tenant": "llama-3-8b",
    "accept": "application/json",
}
BASIC = {"authorization": "Basic " + base64.b64encode(PAIR.encode()).decode()}


@pytest.mark.parametrize(
    "said",
    [
        f"invalid token {TOKEN}",
        f'{{"detail": "Bearer {TOKEN} is not known"}}',
        f"/login?next={quote(TOKEN, safe='')}",
        quote(TOKEN, safe="").lower(),
        json.dumps({"a": TOKEN}).replace("/", "\\/"),
        base64.b64encode(TOKEN.encode()).decode(),
        "key-of-ours-1234",
    ],
)
def test_our_own_credential_is_taken_out_in_every_writing(said: str) -> None:
    told = hidden_of(said.encode(), HEADERS).decode()
    assert HIDDEN in told
    assert "efghi" not in told
    assert "1234" not in told


@pytest.mark.parametrize("said", ["Basic {}", "{}", "user and password: {}"])
def test_of_basic_the_pair_and_the_password_are_taken_out_too(said: str) -> None:
    for form in (PAIR, "pa ss/w0rd%", BASIC["authorization"][6:], quote("pa ss/w0rd%")):
        assert "w0rd" not in hidden_of(said.format(form).encode(), BASIC).decode()
        assert BASIC["authorization"][6:] not in hidden_of(said.format(form).encode(), BASIC).decode()


def test_what_is_no_secret_stays_though_it_stood_in_a_header() -> None:
    said = b'{"model": "llama-3-8b", "accept": "application/json"}'
    assert hidden_of(said, HEADERS) == said
    assert hidden_of(b"abc", {"authorization": "abc"}) == b"abc", "too short to be told from words"


@given(st.integers(0, len(TOKEN)), st.text(max_size=20))
def test_of_a_credential_that_is_cut_off_no_six_characters_stay(length: int, before: str) -> None:
    told = hidden_of(f"{before} {TOKEN[:length]}".encode(), HEADERS).decode()
    assert TOKEN[:6] not in told


@given(st.text(max_size=100))
def test_nothing_that_a_server_says_raises(text: str) -> None:
    hidden(text)
    hidden_of(text.encode("utf-8", "replace"), {"authorization": text, "cookie": f"Basic {text}"})


SECRET = [
    ("Authorization: Bearer abcdefgh12345", "abcdefgh"),
    ("invalid key sk-proj-abc123def456ghi789", "abc123"),
    ("Received API Key = sk-1234567890abcdefgh, Key Hash", "1234567890"),
    ('{"api_key": "0123456789abcdef"}', "abcdef"),
    ("'password': 'hunter2hunter2'", "hunter2"),
    ("http://user:hunter2@gateway:9000/x", "hunter2"),
    ("http://user:p@ss/hunter2@gateway:9000/x", "hunter2"),
    ("https://gateway/x?access_token=abcdef123456&a=b", "abcdef"),
    ("https://hooks.slack.com/services/T000/B000/XXXXYYYY", "XXXX"),
    ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh", "eyJz"),
    ("xoxb-123456789012-abcdefghijkl", "abcdefghijkl"),
]


@pytest.mark.parametrize(("said", "secret"), SECRET)
def test_what_looks_like_a_credential_is_taken_out_whoever_s_it_is(said: str, secret: str) -> None:
    assert secret not in hidden(said)
    assert HIDDEN in hidden(said)


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens: 4096",
        "8192 tokens: too long",
        "token: null",
        "the backend sk-1 is not there",
        "no such server llm/a",
        "the token is missing; see token_file",
        "weight 25 is refused; allowed is 0 to 256",
        "http://127.0.0.1:8000/v1/models: 404",
        "key: 'name' is there twice",
        "Token indices sequence length is longer than 4096",
    ],
)
def test_what_is_no_credential_is_told_as_it_was_said(said: str) -> None:
    assert hidden(said) == said
