"""What requests have in common: the study they are about, and the bounds of what they may ask."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field

from isocompute.web.results import Results, Scope

__all__ = ["RESPONSES", "Metric", "Name", "Part", "Scoped", "Shared", "Unit", "responses"]


class Error(BaseModel):
    """What was wrong, and what to do about it."""

    error: str


class Pending(BaseModel):
    """The result is being made: ask again."""

    pending: str = Field(description="what is being waited for")


RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": Pending, "description": "Being made for the first time; ask again."},
    400: {"model": Error, "description": "The study or the request does not allow it; the message says what would."},
    422: {"model": Error, "description": "A parameter is not of its kind or out of its bounds."},
}


_HEADERS: dict[str, Any] = {
    "Isocompute-Command": {
        "description": "The command that prints the same with `--json`, percent-encoded.",
        "schema": {"type": "string"},
    },
    "Isocompute-Stale": {
        "description": "There where the answer rests on the files of a moment ago.",
        "schema": {"type": "string", "enum": ["1"]},
    },
    "Isocompute-Preliminary": {
        "description": "There where the answer rests on a rough law of averaged points: its replicates and those of "
        "the final one, `50/200`. The JSON then has `preliminary: true` and `replicates`; ask again, or with `final`.",
        "schema": {"type": "string", "pattern": "^[0-9]+/[0-9]+$"},
    },
}


def responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The answers of an operation that gives something else than JSON too."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    content |= {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
    return {200: {"description": "The result.", "headers": _HEADERS, "content": content}}


def _results(request: Request) -> Results:
    found: Results = request.app.state.results
    return found


Shared = Annotated[Results, Depends(_results)]
Name = Annotated[str, Query(min_length=1, max_length=400)]
Part = Annotated[str | None, Query(max_length=400, description="a part of the study; the first where left out")]
Metric = Annotated[str | None, Query(min_length=1, max_length=200, description="such as avg@4; found where left out")]
Unit = Annotated[
    Literal["rollouts", "tokens", "gpu_hours", "steps"] | None, Query(description="of compute; found where left out")
]


Final = Annotated[bool, Query(description="wait for the final law where only a rough one is there; files always do")]


def _scope(
    request: Request,
    results: Shared,
    part: Part = None,
    metric: Metric = None,
    unit: Unit = None,
    final: Final = False,
) -> Scope:
    kept = request.query_params.get("format", "json") not in ("json", "vega")
    return results.scope(part, metric, unit, final=final or kept)


Scoped = Annotated[Scope, Depends(_scope)]
