"""The rise of a setting where its runs end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from isocompute.law import fit_law, read_law
from isocompute.law.curve import Curve
from isocompute.law.store import write_law
from isocompute.law.trend import last_trend
from tests.plan.made_up import sweep_curves


def bent(name: str, level: float = 0.0, slope: float = 0.02, last: float = 2.0**12) -> Curve:
    """Rises steeply up to a sixteenth of its compute, then by `slope` a doubling."""
    x_C = np.linspace(0.0, np.log2(last), 40)
    late_C = np.maximum(x_C - (np.log2(last) - 4.0), 0.0)
    return Curve(name, 2.0**x_C, level + 0.05 * np.minimum(x_C, 8.0) + slope * late_C, 32, 8)


def test_it_is_the_slope_of_the_last_two_doublings_in_log_compute() -> None:
    assert last_trend([bent("a")]) == pytest.approx(0.02)
    late = bent("a")
    x_C = np.log2(late.compute_C)
    keep_C = x_C >= x_C[-1] - 2.0
    assert last_trend([late]) == pytest.approx(np.polyfit(x_C[keep_C], late.values_C[keep_C], 1)[0])


def test_seeds_at_different_levels_that_end_at_different_places_have_one_slope() -> None:
    """A longer run at a lower level would tilt a slope through all points."""
    long, short = bent("a", level=-0.2), bent("b", level=0.2)
    assert last_trend([long, short.until(38)]) == pytest.approx(0.02)


@pytest.mark.parametrize("kept", [[-1], [-2, -1], [-3, -2, -1]])
def test_a_few_points_close_to_each_other_have_none(kept: list[int]) -> None:
    whole = bent("a")
    places = [0, 1, 2, 3, *(len(whole.compute_C) + i for i in kept)]
    sparse = Curve("a", whole.compute_C[places], whole.values_C[places])
    wide = np.log2(sparse.compute_C[-1] / sparse.compute_C[4])
    assert (last_trend([sparse]) is None) == (len(kept) < 3 or wide < 0.5)


def test_a_run_that_ended_long_before_the_others_says_nothing() -> None:
    assert last_trend([bent("a"), bent("b", slope=0.3, last=2.0**6)]) == pytest.approx(0.02)


def test_a_stored_law_keeps_it_and_older_files_have_none(tmp_path: Path) -> None:
    law = fit_law(sweep_curves(1e5), metric="m", replicates=50)
    path = tmp_path / "law.json"
    write_law(law, path)
    assert all(fit.trend is not None for fit in law.settings)
    assert [fit.trend for fit in read_law(path).settings] == [fit.trend for fit in law.settings]
    older = json.loads(path.read_text())
    for setting in older["settings"]:
        del setting["trend"]
    path.write_text(json.dumps(older))
    assert all(fit.trend is None for fit in read_law(path).settings)
