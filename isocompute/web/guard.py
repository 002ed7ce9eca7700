"""What stands between a browser and the app: only this machine's names, only small requests, and a strict policy.

The app listens on 127.0.0.1, but a page on the internet can make its own name point there and read the answers (DNS
rebinding). So a request must name a local host. Nor may a page from elsewhere ask for anything that makes the app work,
though it could not read the answer. The content policy lets a page load nothing but the app's own files: no inline
script, no eval, no other machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_MOST_QUERY = 8 * 1024
_MOST_BODY = 64 * 1024
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] = _HOSTS) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse what is not meant for the app; add the headers to everything that is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        only_head = scope["method"] == "HEAD"

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            elif only_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            # HEAD is GET without the body: the same answer is made, and its headers are sent.
            await self._app({**scope, "method": "GET"} if only_head else scope, receive, guarded)
            return
        status, text = refusal
        body = json.dumps({"error": text}).encode()
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await guarded({"type": "http.response.start", "status": status, "headers": kind})
        await guarded({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        if _without_port(headers.get("host", "")) not in self._hosts:
            return 403, "this app answers requests to 127.0.0.1 and localhost only."
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            return 403, "this app answers its own pages only, not those of another site."
        if len(scope.get("query_string", b"")) > _MOST_QUERY:
            return 414, f"the address is too long; at most {_MOST_QUERY} bytes of query are read."
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdigit() or int(length) > _MOST_BODY:
            return 413, "the API reads nothing from a request's body; leave it out."
        return None


def _without_port(host: str) -> str:
    """`127.0.0.1:8000` and `[::1]:8000` without their port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not name.endswith(":") else host
