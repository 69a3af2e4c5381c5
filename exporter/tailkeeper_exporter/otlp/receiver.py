"""``POST /v1/traces``: spans in, one post at a time.

Bodies are read and understood by a thread, because a post of some thousand spans takes a good part of a second and probes,
scrapes and `/healthz` share this event loop. What is known of the requests is then written in the loop. Bounded: ``MAX_POSTS``
open at a time (others are told to come again), ``BODY_S`` for a body to come, its size plain and inflated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tailkeeper_exporter.otlp import wire
from tailkeeper_exporter.otlp.records import Reading
from tailkeeper_exporter.otlp.wire import BodyError, Encoding

PATH: Final = "/v1/traces"
MAX_POSTS = 8
"""With 4 MiB of body and 8 MiB inflated each, about 100 MiB at the very worst."""
BODY_S = 10.0
"""A sender that drips holds its place no longer."""
COME_AGAIN_S = 1

Read = Callable[[ExportTraceServiceRequest], Reading]


@dataclass(frozen=True, slots=True)
class Received:
    """One post that was understood. ``payload`` is the request in protobuf, byte by byte as it came where it came so."""

    reading: Reading
    payload: bytes


def understand(body: bytes, encoding: Encoding, content_encoding: str, read: Read) -> Received:
    """From bytes to what they tell; runs in a thread. Raises BodyError."""
    plain = wire.inflated(body, content_encoding, wire.MAX_INFLATED_BYTES[encoding])
    request = wire.request_of(plain, encoding)
    try:
        payload = plain if encoding is Encoding.PROTOBUF else wire.bytes_of(request)
    except ValueError as error:
        raise BodyError(400, wire.INVALID_ARGUMENT, f"cannot be written as protobuf: {str(error)[:100]}") from None
    return Received(read(request), payload)


class Receiver:
    """The handler of the route. ``read`` is called in a thread of ``executor``, ``take`` in the event loop."""

    def __init__(self, make_reader: Callable[[], Read], take: Callable[[Received], None], executor: Executor) -> None:
        self._make_reader = make_reader
        self._take = take
        self._executor = executor
        self._open = 0

    async def handle(self, request: Request) -> Response:
        """Answer one post: 200 where it was understood, whatever became of its spans."""
        encoding = Encoding.JSON
        try:
            if self._open >= MAX_POSTS:
                raise BodyError(503, wire.UNAVAILABLE, f"{MAX_POSTS} posts are open already; come again")
            self._open += 1
            try:
                encoding = wire.encoding_of(request.headers.get("content-type", ""))
                await self._handle(request, encoding)
            finally:
                self._open -= 1
        except BodyError as refusal:
            return _refusal(refusal, encoding)
        return Response(wire.success(encoding), headers={"content-type": encoding.value})

    async def _handle(self, request: Request, encoding: Encoding) -> None:
        body = await _body(request)
        compression = request.headers.get("content-encoding", "")
        loop = asyncio.get_running_loop()
        self._take(await loop.run_in_executor(self._executor, understand, body, encoding, compression, self._make_reader()))


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.body()
    except TimeoutError:
        raise BodyError(408, wire.DEADLINE_EXCEEDED, f"the body was not complete within {BODY_S:g} s") from None
    except ClientDisconnect:
        # Nobody reads this answer; it keeps the log free of an error that is none.
        raise BodyError(400, wire.INVALID_ARGUMENT, "the connection ended before the body did") from None


def _refusal(refusal: BodyError, encoding: Encoding) -> Response:
    headers = {"content-type": encoding.value}
    if refusal.status == 503:
        headers["retry-after"] = str(COME_AGAIN_S)
    return Response(wire.failure(refusal.code, refusal.message, encoding), refusal.status, headers)


def traces_route(receiver: Receiver) -> Route:
    return Route(PATH, receiver.handle, methods=["POST"])
