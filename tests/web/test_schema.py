"""Whatever the OpenAPI description allows, and much that it does not, is answered as it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from isocompute.web.results import Results
from isocompute.web.server import create_app
from isocompute.web.source import Source

LOCAL = {"Host": "127.0.0.1"}
app = create_app(Results(Source(str(Path(__file__).parent))))  # the description is the same for every study
schema = schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=LOCAL)


@pytest.fixture(autouse=True, scope="module")
def _study(runs: Path) -> None:
    app.state.results = Results(Source(str(runs)))


@schema.parametrize()
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_the_api_keeps_to_its_description(case: schemathesis.Case) -> None:
    response = case.call(headers=LOCAL)
    assert response.status_code < 500
    # A name that the description allows need not be a run, a part or a metric of this study.
    case.validate_response(response, excluded_checks=[positive_data_acceptance])


def test_every_operation_is_described_and_reads_only(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert len(paths) >= 15
    for operations in paths.values():
        assert set(operations) == {"get"}
        assert operations["get"]["description"]
