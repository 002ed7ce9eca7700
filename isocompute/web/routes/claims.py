"""The two papers' claims on this study."""

from __future__ import annotations

from fastapi import APIRouter, Response

from isocompute.web.answers import TableFormat, table_answer
from isocompute.web.commands import reading_command
from isocompute.web.request import Scoped, Shared, responses

__all__ = ["router"]

router = APIRouter(tags=["claims"])


@router.get("/claims", responses=responses("text/csv"))
def claims(results: Shared, scope: Scoped, format: TableFormat = "json") -> Response:
    """What `isocompute claims --json` prints: each claim with its statistic, interval, verdict and runs."""
    found = results.claims(scope)
    rows = [claim.to_json() for claim in found.value]
    command = reading_command(
        results.source.reading, "claims", results.source.at(scope.part), options={"metric": scope.metric}
    )
    return table_answer({"claims": rows}, rows, form=format, name="claims", command=command, fresh=found.fresh)
