"""Tables of end points: n is compared within strata, not over all runs of each n."""

from __future__ import annotations

import polars as pl
import pytest

from isocompute.data import Run, RunSet, RunSettings
from isocompute.report.charts.sensitivity import Strata, means, strata_of
from isocompute.report.evidence import Evidence
from isocompute.report.figures import Figure, draw

METRIC = "final_validation_accuracy"


def ending(name: str, n: int, accuracy: float, **columns: float) -> Run:
    points = pl.DataFrame([{METRIC: accuracy, "final_train_accuracy": accuracy + 0.1, **columns}])
    return Run(name, RunSettings(rollouts_per_problem=n), points)


def simpson() -> list[Run]:
    """Every model is better with n = 64, but the better model was mostly run with n = 32."""
    small = {32: 0.40, 64: 0.45}
    large = {32: 0.70, 64: 0.75}
    runs = [ending(f"small-b32-r{n}-p{p}", n, v - p, noise=p) for n, v in small.items() for p in (0.0, 0.01)]
    runs += [ending(f"large-b32-r{n}-p0.0", n, v, noise=0.0) for n, v in large.items()]
    return runs + [ending(f"large-b32-r32-p{p}", 32, 0.7 - p, noise=p) for p in (0.01, 0.02, 0.03)]


def figure(runs: list[Run]) -> Figure:
    made = draw("sensitivity", Evidence.of(RunSet(tuple(runs)), metric=METRIC))
    assert isinstance(made, Figure)
    return made


def test_a_mean_over_models_does_not_name_a_best_n() -> None:
    runs = simpson()
    by_n = {n: [float(r.points[METRIC][0]) for r in runs if r.settings.rollouts_per_problem == n] for n in (32, 64)}
    assert sum(by_n[32]) / len(by_n[32]) == pytest.approx(0.5883, abs=1e-4)  # the mean over runs says n = 32
    assert sum(by_n[64]) / len(by_n[64]) == pytest.approx(0.5467, abs=1e-4)
    made = figure(runs)
    assert "highest at" not in made.sentences[0]
    assert "not every one of 6 strata" in made.sentences[0]
    assert "from n = 32 to 64 by +0.050 ± 0.000 (3)" in made.sentences[0]


def test_balanced_strata_name_the_best_n_with_the_error_within_them() -> None:
    # Two models far apart, the same gain of .04 and .06: the mean gain is .05, whatever lies between the models.
    values = {("a", 8): 0.2, ("a", 16): 0.24, ("b", 8): 0.7, ("b", 16): 0.76}
    runs = [ending(f"{model}-n{n}-{copy}", n, v) for (model, n), v in values.items() for copy in ("x", "y")]
    made = figure(runs)
    # n = 16 is .02, .02, .03 and .03 above its strata's means: sd .00577, over √4 strata .0029, twice that .006.
    assert "within 4 strata" in made.sentences[0] and "is highest at n = 16, .500 (.494–.506)" in made.sentences[0]
    strata = strata_of(runs, METRIC)
    (change,) = strata.changes()
    assert change.mean == pytest.approx(0.05) and change.strata == 4


def test_the_error_is_that_of_differences() -> None:
    rows = means({"a": {8: 0.2, 16: 0.24}, "b": {8: 0.7, 16: 0.76}})
    # Inside strata n = 16 is .02 and .03 above the stratum's mean: sd .00707, over √2 strata .005, twice that .01.
    assert rows[1]["value"] == pytest.approx(0.5)
    assert rows[1]["high"] - rows[1]["value"] == pytest.approx(0.01)


def test_what_differs_and_is_no_result_makes_a_stratum() -> None:
    runs = [ending(f"run-{i}", n, 0.5, rate=rate) for i, (n, rate) in enumerate([(8, 1), (16, 1), (8, 2), (16, 2)])]
    found = strata_of(runs, METRIC)
    assert found.differing == ("rate",)  # names that do not spell n, and training's accuracy, tell nothing apart
    assert found.balanced
    seeds = [ending(f"a_n{n}_seed{s}", n, 0.5 + 0.01 * s) for n in (8, 16) for s in (0, 1)]
    assert strata_of(seeds, METRIC).differing == ()


def test_runs_that_all_differ_in_more_than_n_are_not_compared() -> None:
    runs = [ending(f"m{i % 2}-n{n}", n, 0.5 + i / 100) for i, n in enumerate((8, 16))]
    assert "no two runs differ in n alone" in figure(runs).sentences[0]
    assert Strata(("name",), {"a": {8: 0.5}, "b": {16: 0.6}}).changes() == []
