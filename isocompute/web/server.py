"""The server of the web app, for this machine only: pages, the API, errors, and the port.

The app listens on 127.0.0.1, but a website can point its own name to that address and read the responses (DNS
rebinding), so requests must name a local host. Cross-site requests to the API are refused too, even though the other
site could not read the response. The content policy lets pages load only the app's own files.
"""

from __future__ import annotations

import errno
import functools
import logging
import socket
import subprocess
import sys
import threading
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette import types
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from isocompute._version import __version__
from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.report.charts.style import DARK
from isocompute.web import routes
from isocompute.web.planning import as_parameters
from isocompute.web.responses import RESPONSES, json_response
from isocompute.web.results import Results, captured_warnings
from isocompute.web.source import LoadOptions, Source

HOST = "127.0.0.1"
PORT = 8321
_PORTS_TRIED = 20
_PAGES = ("plan", "study", "run", "claims", "compare", "api")
_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_bundling = threading.Lock()
_log = logging.getLogger("isocompute.web")


# --- The port ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A study and the socket that it is served from."""

    source: Source
    socket: socket.socket

    @property
    def url(self) -> str:
        """Address of the first page."""
        return f"http://{HOST}:{self.socket.getsockname()[1]}/"


def bind(address: str, *, port: int | None = None, options: LoadOptions | None = None) -> Served:
    """Check the study and bind a port, so that errors in either come before the server starts."""
    source = Source(address, options)
    snapshot = source.snapshot()
    if source.options.select_runs or not (snapshot.specs or snapshot.parts[-1].runs):  # may be a table or logs
        try:
            with captured_warnings():  # the app reads them again, and its pages show the warnings
                source.load("")
        except InputError as error:
            if source.options.select_runs or not files.is_folder(source.address):
                raise
            raise InputError(
                f"{source.address}: no study.toml, no run folder and no log that can be read in it; give a study's "
                "folder, or make one with isocompute study run SPEC.toml or isocompute import LOGS."
            ) from error
    return Served(source, _listen(port))


def _listen(port: int | None) -> socket.socket:
    for candidate in [port] if port is not None else [*range(PORT, PORT + _PORTS_TRIED), 0]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise InputError(f"--port {candidate}: {error.strerror}; give one from 1024 to 65535.") from error
        return listener
    raise InputError(f"--port {port}: in use by another program; leave --port out to take a free one.")


def serve(served: Served, *, browser: bool) -> None:
    """Serve until Ctrl-C."""
    results = Results(served.source)
    config = uvicorn.Config(
        create_app(results),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    threading.Thread(target=warm, args=(results,), name="warm", daemon=True).start()
    if browser:
        threading.Thread(target=webbrowser.open, args=(served.url,), name="browser", daemon=True).start()
    uvicorn.Server(config).run(sockets=[served.socket])


def warm(results: Results) -> None:
    """Compute what the first pages need before they ask for it: the law and the charts' script."""

    def bundle() -> None:
        with suppress(OSError, subprocess.CalledProcessError):  # the app ended, or the page will ask for it again
            _vega_script()

    threading.Thread(target=bundle, name="vega", daemon=True).start()
    with suppress(InputError):  # the page shows the error
        results.law(results.scope())


def _vega_script() -> bytes:
    """Vega, Vega-Lite and their embedder, from the package that also draws PNGs; sets `window.vegaEmbed`."""
    with _bundling:
        return _bundle()


@functools.cache
def _bundle() -> bytes:
    """Bundle the script in another process, since it would hold the interpreter lock for two seconds."""
    program = 'import vl_convert as v; print(v.javascript_bundle("window.vegaEmbed = vegaEmbed;"))'
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout


# --- The app ----------------------------------------------------------------------------------------------------------


def create_app(results: Results) -> FastAPI:
    """The app over one study's results."""
    app = FastAPI(
        title="isocompute",
        version=__version__,
        summary="A study's plan, figures, runs, claims and comparisons.",
        description="An answer with an `Isocompute-Command` header (percent-encoded) is what that command prints with "
        "`--json`. `Isocompute-Stale: 1` marks a result of an earlier version of the files. The API is read-only.",
        docs_url=None,  # the docs page would load scripts from another server
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=RESPONSES,
        telemetry={"auto_configure": False},  # never send telemetry, whatever the environment says
    )
    app.state.results = results
    app.include_router(routes.router)
    app.include_router(_pages())
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    app.add_middleware(_Guard)
    _add_errors(app)
    return app


def _pages() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    def page() -> Response:
        return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    for path in ("", *_PAGES):  # the first page is the plan, if there can be one
        router.get(f"/{path}")(page)

    @router.get("/vega.js")
    def vega_script() -> Response:
        return Response(_vega_script(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    @router.get("/dark.json")
    def dark_colours() -> Response:
        return json_response(DARK)

    @router.get("/favicon.ico")
    def icon() -> Response:
        return FileResponse(_STATIC / "icon.svg", media_type="image/svg+xml")

    return router


class _Guard:
    """Middleware that sets security headers, answers HEAD, and refuses cross-site requests to the API."""

    def __init__(self, app: types.ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        async def with_headers(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if scope["type"] == "http":
            if scope["path"].startswith("/api/") and Headers(scope=scope).get("sec-fetch-site") == "cross-site":
                app = json_response({"error": "this app answers its own pages, not those of another site."}, status=403)
            elif scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}  # the server leaves the body out
        await app(scope, receive, with_headers)


def _add_errors(app: FastAPI) -> None:
    """Responses to errors, which say what to do and show no internals."""

    def error(message: str, status: int) -> Response:
        return json_response({"error": message}, status=status)

    @app.exception_handler(InputError)
    def wrong(_: Request, problem: InputError) -> Response:
        return error(as_parameters(" ".join(str(problem).split())), 400)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, problem: RequestValidationError) -> Response:
        return error("; ".join(_field(each) for each in problem.errors()[:3]), 422)

    @app.exception_handler(HTTPException)
    def http(request: Request, problem: HTTPException) -> Response:
        messages = {
            404: f"there is nothing at {request.url.path}; /api lists all addresses.",
            405: "the API answers GET only: it is read-only.",
        }
        response = error(messages.get(problem.status_code, str(problem.detail)), problem.status_code)
        response.headers.update(problem.headers or {})
        return response

    @app.exception_handler(Exception)
    def broken(request: Request, problem: Exception) -> Response:
        _log.error("%s failed", request.url.path, exc_info=problem)
        return error("this is an error in the app; see its terminal.", 500)


def _field(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"][1:]) or "the request"
    return f"{where}: {error['msg'][:1].lower()}{error['msg'][1:]}"
