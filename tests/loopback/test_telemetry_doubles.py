"""The doubles over HTTP: what is sent over OTLP is what Tempo's and Loki's own paths answer with."""

from __future__ import annotations

import gzip

import httpx
import pytest

from tests.unit.sent_telemetry import AT_S, logs, request, spans
from tools.doubles.server import doubles

PROTOBUF = {"content-type": "application/x-protobuf"}


def test_what_is_sent_is_found_by_all_paths() -> None:
    with doubles() as running, httpx.Client(base_url=running.url, trust_env=False) as client:
        packed = gzip.compress(spans(request(0))[0].SerializeToString())
        assert client.post("/v1/traces", content=packed, headers={**PROTOBUF, "content-encoding": "gzip"}).status_code == 200
        assert client.post("/v1/logs", content=logs(request(0))[0].SerializeToString(), headers=PROTOBUF).status_code == 200
        assert client.get("/api/search", params={"q": '{ name = "queue" }'}).json()["traces"][0]["traceID"] == "1"
        assert len(client.get("/api/traces/1").json()["batches"]) == 4
        assert len(client.get("/api/v2/traces/1").json()["trace"]["resourceSpans"]) == 4
        whole = {"query": '{service_name="tailkeeper-tap"}', "start": str(AT_S), "end": str(AT_S + 9)}
        assert len(client.get("/loki/api/v1/query_range", params=whole).json()["data"]["result"]) == 1
        assert client.get("/loki/api/v1/label/service_name/values", params=whole).json()["data"] == ["tailkeeper-tap"]
        counted = {"query": "count_over_time({service_name=`tailkeeper-tap`}[1m])", "time": str(AT_S + 9)}
        assert client.get("/loki/api/v1/query", params=counted).json()["data"]["result"][0]["value"][1] == "1"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/search?q={", 400, "parse error"),
        ("/api/search?q={}|rate()", 400, "select"),
        ("/api/traces/zz", 400, "hex"),
        ("/api/traces/99", 404, "not found"),
        ("/loki/api/v1/query_range?query={a%3D%22b%22}|unpack", 400, "unpack"),
        ("/loki/api/v1/series", 404, "this double has"),
    ],
)
def test_what_is_not_known_is_said_and_never_an_empty_result(path: str, status: int, words: str) -> None:
    with doubles() as running:
        answer = httpx.get(running.url + path, trust_env=False)
        assert answer.status_code == status
        assert words in answer.text


def test_what_is_no_otlp_is_refused() -> None:
    with doubles() as running, httpx.Client(base_url=running.url, trust_env=False) as client:
        assert client.post("/v1/traces", content=b"\xff\xff", headers=PROTOBUF).status_code == 400
        assert client.post("/v1/logs", content=b"no", headers={"content-encoding": "gzip"}).status_code == 400
        assert client.post("/v1/metrics", content=b"").status_code == 404
        assert running.store.traces() == {}
