"""The choice of a metric, and of the runs that have a curve of it."""

from __future__ import annotations

import warnings
from typing import Any

import polars as pl
import pytest

from isocompute.core.curve import choose_metric, choose_unit, curves_of
from isocompute.core.errors import InputError
from isocompute.core.recorder import RunSettings
from isocompute.core.run import Run, RunSet, RunWarning, mark_non_finite
from isocompute.law.curves import settings_of
from tests.conftest import rising


def run(name: str, points: list[dict[str, Any]]) -> Run:
    return Run(name, RunSettings(), pl.DataFrame(points))


def logged(*metrics: str, count: int = 6) -> list[dict[str, Any]]:
    return [{"step": i} | dict.fromkeys(metrics, 0.1 * i) for i in range(1, count + 1)]


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        (["train/avg", "worst@4", "best@4", "avg@4"], "avg@4"),
        (["zero_variance", "train/avg", "worst@4", "best@4"], "best@4"),
        (["train/avg", "kl", "worst@4"], "worst@4"),
        (["train/avg", "avg@4/gsm8k"], "avg@4/gsm8k"),
        (["zero_variance", "kl", "train/avg"], "train/avg"),
    ],
)
def test_one_ranking_of_rewards(metrics: list[str], chosen: str) -> None:
    assert choose_metric(RunSet((run("a", logged(*metrics)),))) == chosen


def test_what_was_never_a_number_is_not_chosen_unless_asked_for() -> None:
    dead = mark_non_finite(pl.DataFrame(logged("train/avg")).with_columns(pl.lit(float("nan")).alias("avg@4")))
    one = RunSet((Run("a", RunSettings(), dead),))
    assert choose_metric(one) == "train/avg"
    assert choose_metric(one, "avg@4") == choose_metric(one, any_number=False) == "avg@4"
    assert choose_metric(RunSet((*one, run("b", logged("train/avg", "avg@4"))))) == "avg@4"  # b has a curve of it


def test_the_reward_in_training_is_taken_with_a_note() -> None:
    runs = RunSet((run("a", logged("zero_variance", "train/avg", "kl")),))
    with pytest.warns(RunWarning, match="no metric on held-out problems; taking train/avg"):
        (_,), metric, _ = curves_of(runs)
    assert metric == "train/avg"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves_of(runs, metric="train/avg")  # asked for: nothing to note


def test_rewards_are_named_first() -> None:
    runs = RunSet((run("a", logged("kl", "train/avg", "avg@4")),))
    with pytest.raises(InputError, match=r"one of 'avg@4', 'train/avg', 'kl'\."):
        choose_metric(runs, "reward")


def test_a_metric_by_the_name_that_its_trainer_gave_it_is_told_its_name_here() -> None:
    runs = RunSet((run("a", logged("kl", "train/avg", "avg@1")),))
    with pytest.raises(InputError, match=r"'eval_reward'; .* is called 'avg@1' here: say --metric avg@1, or another"):
        choose_metric(runs, "eval_reward")
    with pytest.raises(InputError, match=r"'eval_loss'; say --metric NAME with one of 'avg@1', 'train/avg', 'kl'\."):
        choose_metric(runs, "eval_loss")


@pytest.mark.parametrize(
    ("others", "advice"),
    [
        (["zero_variance"], r"evaluate more often\.$"),
        (["zero_variance", "train/avg"], r"evaluate more often, or use --metric train/avg, which has 8\.$"),
    ],
)
def test_too_few_values_of_the_only_run(others: list[str], advice: str) -> None:
    points = [
        point | dict.fromkeys(others, 0.1) | ({} if i in (1, 4) else {"avg@4": None})
        for i, point in enumerate(rising(8))
    ]
    with pytest.raises(
        InputError, match=r"run 'a', column 'avg@4': 2 of 8 points have a value, a fit needs 4; " + advice
    ):
        curves_of(RunSet((run("a", points),)))


def test_end_points_among_curves_are_left_out() -> None:
    good = [run(name, rising(8)) for name in ("a", "b")]
    ends = [run("end", [{"last_step": 200, "final": 0.5}]), run("two", rising(2)), run("one", [{"step": 9, "x": 0.5}])]
    runs = RunSet((ends[0], good[0], *ends[1:], good[1]))
    match = (
        r"3 of 5 runs left out, 1 without step or compute and 2 with fewer than 4 values of 'avg@4': 'end', 'two', 'o"
    )
    with pytest.warns(RunWarning, match=match):
        curves, _, unit = curves_of(runs, metric="avg@4")
    assert ([curve.name for curve in curves], unit) == (["a", "b"], "rollouts")
    assert choose_unit(RunSet((ends[0], *good))) == "rollouts"
    assert choose_metric(RunSet((ends[0], *good))) == "avg@4"


def test_end_points_alone_are_refused() -> None:
    runs = RunSet(tuple(run(name, [{"avg@4": 0.5}]) for name in "ab"))
    with pytest.raises(InputError, match="no run counts compute"):
        curves_of(runs)


def test_where_and_how_fast_a_run_was_made_does_not_tell_seeds_apart() -> None:
    def made(seed: int, kl: float = 0.0, **where: Any) -> Run:
        settings = RunSettings(
            problems_per_batch=32, rollouts_per_problem=8, seed=seed, model="m", recipe={"loss": "clip", "kl_coef": kl}
        ).model_copy(update=where)
        return Run(f"{seed}-{kl}", settings, pl.DataFrame(rising()))

    places = [{"device": "cuda:0", "micro_batch": 512}, {"device": "cuda:1", "micro_batch": 256, "started": "today"}]
    runs = [made(seed, **where) for seed, where in enumerate(places)]
    curves, _, _ = curves_of(RunSet((*runs, made(2, kl=0.1), made(3, dataset="math"))))
    assert settings_of(curves) == [[0, 1], [2], [3]]
