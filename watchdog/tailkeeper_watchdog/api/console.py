"""The console's files: a fixed list, read once at the start. What is not in it does not exist, whatever a path asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import FastAPI, Response

MODULES = (
    "backends",
    "change",
    "console",
    "details",
    "did",
    "explain",
    "facts",
    "findings",
    "live",
    "nodes",
    "now",
    "pager",
    "report",
    "report_file",
    "trend",
    "words",
)
"""Of JavaScript; ``console`` is the one that the page names, and imports the others."""
FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in MODULES},
}
"""Path → name in the folder ``console`` and media type."""


def add_console(api: FastAPI) -> None:
    folder = resources.files("tailkeeper_watchdog") / "console"
    for path, (name, media_type) in FILES.items():
        content = (folder / name).read_bytes()
        api.add_api_route(path, _static(content, media_type), methods=["GET"], include_in_schema=False)


def _static(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return answer
