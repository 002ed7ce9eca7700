"""Which runs make a setup, which are left out, and how hard its problems are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

import isocompute
from isocompute.core.errors import InputError
from isocompute.data import Run, RunSet, RunSettings, RunWarning
from isocompute.diagnose.claims import Claim, judge
from isocompute.diagnose.setups import sort_runs
from tests.diagnose.synthetic_sweeps import crossing, same, sweep


def changed(runs: RunSet, change: Callable[[int, RunSettings], dict[str, Any]]) -> RunSet:
    """The runs with settings that differ from run to run."""
    return replace(
        runs,
        runs=tuple(
            replace(run, settings=run.settings.model_copy(update=change(i, run.settings))) for i, run in enumerate(runs)
        ),
    )


def claim(runs: RunSet, code: str) -> Claim:
    return next(found for found in judge(runs) if found.code == code)


def with_values(run: Run, values: np.ndarray, name: str) -> Run:
    return replace(run, name=name, points=run.points.with_columns(pl.Series("avg@4", values)))


@pytest.mark.parametrize("key", ["host", "created", "device", "note"])
def test_where_and_when_a_run_was_made_does_not_split_a_sweep(key: str) -> None:
    runs = changed(sweep(crossing, rng=np.random.default_rng(0), seeds=2), lambda i, _: {key: f"here-{i}"})
    assert len(sort_runs(runs, "avg@4").setups) == 1
    if key != "note":  # a note tells seeds from each other, so `fit` sees one seed of each
        assert claim(runs, "optimum_rises").verdict == "holds"


def _scaled(base: float) -> Callable[[int, RunSettings], dict[str, Any]]:
    """A learning rate that is logged as it is at each batch."""
    return lambda _, said: {"recipe": {"learning_rate": base * ((said.rollouts_per_problem or 0) / 8) ** 0.5}}


def test_a_learning_rate_that_follows_the_batch_does_not_split_a_sweep() -> None:
    """Nor does it where another set in the folder has another one, nor do its values stand in a setup's name."""
    rng = np.random.default_rng(0)
    runs = changed(sweep(crossing, rng=rng, seeds=2), _scaled(1e-6))
    found = claim(runs, "optimum_rises")
    assert (found.verdict, len(found.runs)) == ("holds", 6)
    both = RunSet((*runs, *changed(sweep(crossing, rng=rng, seeds=2, problems="hard"), _scaled(2e-6))))
    assert [setup.name for setup in sort_runs(both, "avg@4").setups] == ["easy", "hard"]


def test_two_learning_rates_at_one_batch_are_two_setups() -> None:
    rng = np.random.default_rng(0)
    sides = [sweep(crossing, rng=rng, recipe={"learning_rate": rate}, prefix=f"{rate}-") for rate in (1e-6, 2e-6)]
    setups = sort_runs(RunSet((*sides[0], *sides[1])), "avg@4").setups
    assert [setup.name for setup in setups] == ["learning_rate=1e-06", "learning_rate=2e-06"]


def _arms() -> RunSet:
    """Rows of a table that names its runs by what differs: one recipe's label, and a seed."""
    rng = np.random.default_rng(2)
    out: list[Run] = []
    for arm in ("sqrt", "constant"):
        rows = sweep(same, rng=rng, ns=(32,), seeds=3, recipe={"lr_scaling": arm})
        out += [replace(run, name=f"arm={arm},seed={i}") for i, run in enumerate(rows)]
    return RunSet(tuple(out))


def test_a_label_of_a_recipe_does_not_keep_a_pair_apart() -> None:
    assert len(claim(_arms(), "sqrt_beats_constant").runs) == 6


def test_what_differs_beside_the_recipe_keeps_a_pair_apart() -> None:
    """In any key of run.json, such as the language-model engine's dtype."""
    runs = changed(_arms(), lambda _, said: {"dtype": (said.recipe or {})["lr_scaling"]})
    assert claim(runs, "sqrt_beats_constant").runs == ()


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (lambda values: values * 0.0, "1 with one value of 'avg@4' throughout"),
        (lambda values: np.where(np.arange(len(values)) < 3, values, np.nan), "1 with fewer than 4 values of 'avg@4'"),
    ],
)
def test_a_run_without_a_curve_is_left_out_by_name(spoilt: Callable[[np.ndarray], np.ndarray], why: str) -> None:
    runs = sweep(crossing, rng=np.random.default_rng(0), seeds=2)
    bad = with_values(runs[0], spoilt(runs[0].points["avg@4"].to_numpy()), "bad")
    bad = replace(
        bad,
        settings=bad.settings.model_copy(update={"rollouts_per_problem": 2}),
        points=bad.points.with_columns(pl.col("avg@4").fill_nan(None)),
    )
    with pytest.warns(RunWarning) as said:
        found = claim(RunSet((bad, *runs)), "optimum_rises")
    assert [str(warning.message) for warning in said] == [f"runs: 1 of 7 runs left out, {why}: 'bad'."]
    assert (found.verdict, "bad" in found.runs, len(found.runs)) == ("holds", False, 6)


@pytest.mark.parametrize("rollouts", [lambda x: -x, lambda x: x[::-1]])
def test_broken_compute_is_refused_as_fit_refuses_it(rollouts: Callable[[np.ndarray], np.ndarray]) -> None:
    runs = sweep(crossing, rng=np.random.default_rng(0))
    bad = runs[0].points.with_columns(pl.Series("rollouts", rollouts(runs[0].points["rollouts"].to_numpy())))
    broken = RunSet((replace(runs[0], points=bad), *runs[1:]))
    with pytest.raises(InputError) as by_fit:
        isocompute.fit(broken)
    with pytest.raises(InputError) as by_claims:
        judge(broken)
    assert str(by_claims.value) == str(by_fit.value)


def test_a_run_that_falls_before_it_gives_a_curve_leaves_its_sweep() -> None:
    runs = sweep(crossing, rng=np.random.default_rng(0), seeds=2)
    flat = np.where(np.arange(24) < 6, 0.5, 0.1)
    with pytest.warns(RunWarning) as said:
        found = claim(RunSet((with_values(runs[0], flat, "fallen"), *runs)), "optimum_rises")
    assert [str(warning.message) for warning in said] == [
        "runs: 1 of 7 runs collapse before they give a curve; claims about n* leave out 'fallen'."
    ]
    assert (found.verdict, "fallen" in found.runs) == ("holds", False)


def test_one_constant_run_in_another_metric_does_not_take_the_sweep_along() -> None:
    metrics = {
        "worst@4": crossing,
        "best@4": lambda n, c: 0.2 + same(n, c) - 0.03 * np.log2(n / 8),
    }
    runs = sweep(crossing, rng=np.random.default_rng(6), seeds=2, metrics=metrics)
    none = runs[0].points.with_columns(pl.lit(0.0).alias("worst@4"))
    with pytest.warns(RunWarning, match="1 of 6 runs left out, 1 with one value of 'worst@4' throughout: 'easy-8-s0'"):
        found = claim(RunSet((replace(runs[0], points=none), *runs[1:])), "worst_wants_larger_n_easy")
    assert found.verdict == "holds"


def test_tokens_that_cannot_be_read_leave_their_claim_undecided() -> None:
    runs = [
        replace(r, points=r.points.with_columns(tokens=-pl.col("rollouts")))
        for r in sweep(crossing, rng=np.random.default_rng(0))
    ]
    with pytest.warns(RunWarning, match="column 'tokens': row 1 is empty, negative or not finite"):
        claims = judge(RunSet(tuple(runs)))
    assert next(c for c in claims if c.code == "tokens_agree").verdict == "undecided"


@pytest.mark.parametrize(
    ("base", "top", "unit", "expected"),
    [
        (0.004, 0.3, 1.0, "hard"),
        (0.004, 0.3, 100.0, "hard"),
        (0.4, 0.7, 1.0, "easy"),
        (0.4, 0.7, 100.0, "easy"),
        (0.15, 0.7, 1.0, None),
        (0.15, 0.7, 100.0, None),
        (0.4, 5.0, 1.0, None),
    ],
)
def test_difficulty_by_the_base_pass_rate(base: float, top: float, unit: float, expected: str | None) -> None:
    """In percent too; a reward that goes beyond 1 and is no percent is no pass rate."""
    (run,) = sweep(same, rng=np.random.default_rng(0), ns=(32,), problems="mine")
    values = unit * np.linspace(base, top, run.points.height)
    study = sort_runs(RunSet((with_values(run, values, "a"),)), "avg@4")
    assert study.difficulty(study.setups[0]) == expected


def test_percent_on_a_set_that_stays_low_is_known_by_the_other_runs() -> None:
    (run,) = sweep(same, rng=np.random.default_rng(0), ns=(32,), problems="mine")
    low, high = (with_values(run, np.linspace(0.45, top, run.points.height), f"to {top}") for top in (12.0, 30.0))
    low = replace(low, settings=low.settings.model_copy(update={"recipe": {"kl_coef": 0.1}}))
    study = sort_runs(RunSet((low, high)), "avg@4")
    assert [study.difficulty(setup) for setup in study.setups] == ["hard", "hard"]


def test_runs_without_the_metric_are_no_part_of_a_setup() -> None:
    runs = sweep(crossing, rng=np.random.default_rng(0), seeds=2)
    other = replace(runs[0], name="other", points=runs[0].points.rename({"avg@4": "avg@1"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = sort_runs(RunSet((*runs, other)), "avg@4")
    assert "other" not in {run.name for setup in study.setups for run in setup.runs}


def test_a_further_key_that_some_runs_share_tells_setups_apart() -> None:
    """Responses of another length are no seeds of the same; a length that goes with n is part of the sweep."""
    runs = sweep(crossing, rng=np.random.default_rng(0), seeds=2)
    by_seed = changed(runs, lambda _, said: {"max_response_tokens": 512 * (1 + (said.seed or 0))})
    assert [len(setup.runs) for setup in sort_runs(by_seed, "avg@4").setups] == [len(runs) // 2] * 2
    by_n = changed(runs, lambda _, said: {"max_response_tokens": 64 * (said.rollouts_per_problem or 0)})
    assert len(sort_runs(by_n, "avg@4").setups) == 1


def test_a_setup_that_cannot_be_read_is_left_out_alone() -> None:
    rng = np.random.default_rng(0)
    good, odd = sweep(crossing, rng=rng, seeds=2), sweep(crossing, rng=rng, seeds=1, problems="hard")
    steps = odd.runs[0].points.drop("rollouts").with_columns(pl.int_range(1, pl.len() + 1).alias("step"))
    settings = odd.runs[0].settings.model_copy(update={"problems_per_batch": None, "rollouts_per_problem": None})
    mixed = replace(odd, runs=(*odd.runs[1:], replace(odd.runs[0], points=steps, settings=settings)))
    with pytest.warns(RunWarning, match=r"mixed units: .* Claims are without these runs\."):
        study = sort_runs(RunSet((*good, *mixed)), "avg@4")
    assert [setup.name for setup in study.setups] == ["easy"]
