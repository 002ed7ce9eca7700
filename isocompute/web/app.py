"""The web app: pages and their files, the API, and errors that say what to do and nothing of the inside."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from isocompute import __version__
from isocompute.core.errors import InputError
from isocompute.web import vega
from isocompute.web.answers import json_answer
from isocompute.web.cache import PendingError
from isocompute.web.guard import Guard
from isocompute.web.request import RESPONSES
from isocompute.web.results import Results
from isocompute.web.routes import claims, compare, plan, run, runs, study
from isocompute.web.wording import as_parameters

__all__ = ["PAGES", "create_app"]

PAGES = ("plan", "study", "run", "claims", "compare", "api")
_STATIC = Path(__file__).parent / "static"
_log = logging.getLogger("isocompute.web")


def create_app(results: Results) -> FastAPI:
    """The app over one study's results."""
    app = FastAPI(
        title="isocompute",
        version=__version__,
        summary="A study's plan, figures, runs, claims and comparisons.",
        description="An answer with an `Isocompute-Command` header (percent-encoded) is what that command prints with "
        "`--json`. `Isocompute-Stale: 1` marks one that rests on the files of a moment ago. A law that takes long is "
        "preceded by a rough one: `Isocompute-Preliminary: 50/200` (replicates so far, and in the end) and "
        "`preliminary: true` in the JSON mark what rests on it; `final=true` waits. Nothing can be changed.",
        docs_url=None,  # its page loads scripts from another machine
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=RESPONSES,
        telemetry={"auto_configure": False},  # whatever the environment says: nothing is sent anywhere
    )
    app.state.results = results
    api = APIRouter(prefix="/api")
    for part in (plan, study, runs, run, claims, compare):
        api.include_router(part.router)
    app.include_router(api)
    app.include_router(_pages())
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_middleware(Guard)
    _add_errors(app)
    return app


def _pages() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    def page() -> Response:
        return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    for path in ("", *PAGES):  # the page decides where it begins: with the plan, where there can be one
        router.get(f"/{path}")(page)

    @router.get("/vega.js")
    def vega_script() -> Response:
        return Response(vega.script(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    @router.get("/dark.json")
    def dark_colours() -> Response:
        from isocompute.report.style import DARK

        return json_answer(DARK)

    @router.get("/favicon.ico")
    def icon() -> Response:
        return FileResponse(_STATIC / "icon.svg", media_type="image/svg+xml")

    return router


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(InputError)
    def wrong(_: Request, error: InputError) -> Response:
        return json_answer({"error": as_parameters(" ".join(str(error).split()))}, status=400)

    @app.exception_handler(PendingError)
    def pending(_: Request, error: PendingError) -> Response:
        return json_answer({"pending": str(error)}, status=202)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        return json_answer({"error": "; ".join(_field(each) for each in error.errors()[:3])}, status=422)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        known = {
            404: f"there is nothing at {request.url.path}; /api lists what there is.",
            405: "the API answers GET only: nothing can be changed through it.",
        }
        answer = json_answer({"error": known.get(error.status_code, str(error.detail))}, status=error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        _log.error("%s failed", request.url.path, exc_info=error)
        return json_answer({"error": "this is a mistake of the app; its terminal says more."}, status=500)


def _field(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"][1:]) or "the request"
    return f"{where}: {error['msg'][:1].lower()}{error['msg'][1:]}"
