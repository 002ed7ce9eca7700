"""True claims hold, false claims fail, and noise decides neither."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from isocompute.data import Run, RunSet
from isocompute.diagnose.claims import Claim, judge
from isocompute.diagnose.optima import about_optimum
from isocompute.diagnose.recipes import about_recipes
from isocompute.diagnose.setups import sort_runs
from isocompute.diagnose.verdicts import above, combined, inside, no_better, seed_difference
from tests.diagnose.synthetic_sweeps import Truth, crossing, same, sweep


def _by_code(runs: RunSet) -> dict[str, Claim]:
    return {claim.code: claim for claim in judge(runs)}


def _join(*sets: RunSet) -> RunSet:
    return RunSet(tuple(run for runs in sets for run in runs))


def hill(_: int, compute_C: np.ndarray) -> np.ndarray:
    """A sigmoid in log compute: a power law through its first half overshoots."""
    return np.asarray(0.3 + 0.3 / (1 + (2e5 / compute_C) ** 2.0))


def test_a_rise_that_levels_off_is_found() -> None:
    runs = sweep(crossing, rng=np.random.default_rng(0), ns=(8, 32, 128, 512), seeds=2)
    claims = _by_code(runs)
    assert claims["optimum_rises"].verdict == "holds"
    assert claims["optimum_saturates"].verdict == "holds"
    assert set(claims["optimum_rises"].runs) == {run.name for run in runs}


def test_the_largest_n_at_the_end_asks_for_a_larger_one() -> None:
    claims = _by_code(sweep(crossing, rng=np.random.default_rng(0), seeds=2))
    assert claims["optimum_saturates"].verdict == "undecided"
    assert claims["optimum_saturates"].needs == "n above 128: the largest n leads at the end"


def test_chance_does_not_make_n_rise() -> None:
    """Where n makes no difference, `holds` comes no more often than the level of its test."""
    held = 0
    for seed in range(20):
        runs = sweep(same, rng=np.random.default_rng(seed), seeds=1 + seed % 3)
        held += any(claim.verdict == "holds" for claim in about_optimum(sort_runs(runs, "avg@4")))
    assert held <= 3  # beyond it the chance is under 2% at a level of 5%


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_chance_does_not_tell_recipes_apart(seeds: int) -> None:
    """Two recipes that do the same: no claim on them holds or fails more often than its level."""
    decided: dict[str, int] = {}
    for seed in range(30):
        rng = np.random.default_rng(1000 * seeds + seed)
        terms = {"loss": "cispo", "kl_coef": 0.001, "entropy_coef": 0.001}
        recipes = {
            "both": terms,
            "bare": terms | {"kl_coef": 0.0, "entropy_coef": 0.0},
            "clip": terms | {"loss": "clip"},
        }
        sides = [
            sweep(same, rng=rng, ns=(32,), seeds=seeds, points=16, recipe=recipe, prefix=f"{name}-")
            for name, recipe in recipes.items()
        ]
        for claim in about_recipes(sort_runs(_join(*sides), "avg@4")):
            decided[claim.code] = decided.get(claim.code, 0) + (bool(claim.runs) and claim.verdict != "undecided")
    assert decided["regularisers_help_easy"] <= 4
    assert decided["cispo_raises_ceiling"] <= 4


def test_a_better_recipe_is_found_and_named() -> None:
    rng = np.random.default_rng(3)
    terms = {"kl_coef": 0.001, "entropy_coef": 0.001}
    runs = _join(
        sweep(lambda n, c: same(n, c) + 0.1, rng=rng, ns=(32,), seeds=3, recipe=terms, prefix="both-"),
        sweep(same, rng=rng, ns=(32,), seeds=3, recipe={"kl_coef": 0.0, "entropy_coef": 0.0}, prefix="bare-"),
    )
    claim = _by_code(runs)["regularisers_help_easy"]
    assert claim.verdict == "holds"
    assert claim.interval is not None
    assert claim.interval[0] < 0.1 < claim.interval[1]
    assert len(claim.runs) == 6
    turned = RunSet(
        tuple(type(run)(run.name, run.settings.model_copy(update={"problems": "hard"}), run.points) for run in runs)
    )
    assert _by_code(turned)["regularisers_hurt_hard"].verdict == "fails"


def test_recipes_that_differ_in_more_are_no_pair() -> None:
    rng = np.random.default_rng(4)
    runs = _join(
        sweep(same, rng=rng, ns=(32,), recipe={"kl_coef": 0.001, "entropy_coef": 0.001, "grad_clip": 0.5}, prefix="a-"),
        sweep(same, rng=rng, ns=(32,), recipe={"kl_coef": 0.0, "entropy_coef": 0.0}, prefix="b-"),
    )
    claim = _by_code(runs)["regularisers_help_easy"]
    assert claim.verdict == "undecided"
    assert claim.needs is not None
    assert "all else equal" in claim.needs


def test_a_collapse_counts_against_a_recipe() -> None:
    """The reward at the end is what was measured there, not what a fit of the points before the fall would say."""
    rng = np.random.default_rng(5)

    def fallen(n: int, compute_C: np.ndarray) -> np.ndarray:
        return np.where(compute_C < 1e6, same(n, compute_C) + 0.1, 0.1)

    runs = _join(
        sweep(same, rng=rng, ns=(32,), seeds=2, recipe={"lr_scaling": "sqrt"}, prefix="sqrt-"),
        sweep(fallen, rng=rng, ns=(32,), seeds=2, recipe={"lr_scaling": "linear"}, prefix="linear-"),
    )
    assert _by_code(runs)["sqrt_beats_linear"].verdict == "holds"


def test_metrics_that_want_different_n() -> None:
    rng = np.random.default_rng(6)
    metrics = {
        "worst@4": crossing,
        "best@4": lambda n, c: 0.2 + same(n, c) - 0.03 * np.log2(n / 8),
    }
    runs = sweep(crossing, rng=rng, seeds=2, metrics=metrics)
    claim = _by_code(runs)["worst_wants_larger_n_easy"]
    assert claim.verdict == "holds"
    assert claim.statistic["value"] == pytest.approx(4.0)


def test_a_small_set_caps_n() -> None:
    rng = np.random.default_rng(9)

    def capped(n: int, compute_C: np.ndarray) -> np.ndarray:
        return crossing(n, compute_C) - (0.25 if n == 128 else 0.0)

    runs = _join(
        sweep(capped, rng=rng, ns=(8, 32, 128), seeds=2, prefix="small-", world={"size": 500}),
        sweep(crossing, rng=rng, ns=(8, 32, 128), seeds=2, prefix="large-", world={"size": 6000}),
    )
    claim = _by_code(runs)["small_sets_cap_n"]
    assert (claim.verdict, claim.statistic["sizes"]) == ("holds", [500, 6000])


@pytest.mark.parametrize(
    ("small", "large", "needs"),
    [
        ((8, 32), (8, 32, 128), "n above 32, on the small set"),
        ((8, 32, 128), (8, 32), "n above 32, on the large set"),
    ],
)
def test_the_largest_n_of_one_set_decides_nothing_against_the_other(
    small: tuple[int, ...], large: tuple[int, ...], needs: str
) -> None:
    rng = np.random.default_rng(9)
    runs = _join(
        sweep(crossing, rng=rng, ns=small, seeds=2, prefix="small-", world={"size": 500}),
        sweep(crossing, rng=rng, ns=large, seeds=2, prefix="large-", world={"size": 6000}),
    )
    claim = _by_code(runs)["small_sets_cap_n"]
    assert (claim.verdict, claim.needs) == ("undecided", needs)


def test_the_smallest_n_of_one_set_decides_nothing_against_the_other() -> None:
    rng = np.random.default_rng(9)

    def falling(n: int, compute_C: np.ndarray) -> np.ndarray:
        return same(n, compute_C) - 0.05 * np.log2(n)

    runs = _join(
        sweep(falling, rng=rng, ns=(8, 32), seeds=2, problems="hard"),
        sweep(falling, rng=rng, ns=(32, 128), seeds=2, problems="easy"),
    )
    claim = _by_code(runs)["hard_saturates_lower"]
    assert (claim.verdict, claim.needs) == ("undecided", "n below 32, on the easy set")


def test_problems_near_zero_are_compared_at_equal_compute() -> None:
    rng = np.random.default_rng(10)
    near_zero = {"train/zero_pass": lambda n, c: 0.3 - 0.02 * np.log2(n) + 0.0 * c}
    runs = sweep(same, rng=rng, ns=(8, 128), seeds=4, seed_spread=0.003, noise=0.003, metrics=near_zero)
    claim = _by_code(runs)["larger_n_spreads_progress"]
    assert claim.verdict == "holds"
    assert claim.statistic["value"] == pytest.approx(0.08, abs=0.01)


def test_the_form_is_tested_on_what_was_not_fitted() -> None:
    runs = sweep(hill, rng=np.random.default_rng(11), ns=(8, 16, 32, 64, 128, 256), noise=0.002, points=60)
    claim = _by_code(runs)["sigmoid_beats_power"]
    assert claim.verdict == "holds"
    assert len(claim.runs) == 6


def test_one_run_in_percent_does_not_decide_the_form() -> None:
    """Errors are of the scale that each run's values lie on."""
    runs = sweep(hill, rng=np.random.default_rng(11), ns=(8, 16, 32, 64, 128, 256), noise=0.002, points=60)
    percent = replace(runs[0], points=runs[0].points.with_columns(pl.col("avg@4") * 100.0))
    mixed = RunSet((replace(percent, settings=percent.settings.model_copy(update={"problems": "hard"})), *runs[1:]))
    one, other = (_by_code(each)["sigmoid_beats_power"] for each in (runs, mixed))
    assert other.verdict == one.verdict == "holds"
    assert other.statistic["value"] == pytest.approx(one.statistic["value"], rel=0.01)


def test_every_undecided_claim_says_what_it_needs_and_all_are_plain_data() -> None:
    for claim in judge(sweep(same, rng=np.random.default_rng(7), ns=(8,))):
        assert (claim.needs is not None) == (claim.verdict == "undecided")
        json.dumps(claim.to_json(), allow_nan=False)


def test_codes_are_distinct_where_there_are_several_setups() -> None:
    rng = np.random.default_rng(8)
    runs = _join(sweep(crossing, rng=rng), sweep(crossing, rng=rng, problems="hard"))
    codes = [claim.code for claim in judge(runs)]
    assert len(codes) == len(set(codes))
    assert {"optimum_rises/easy", "optimum_rises/hard"} <= set(codes)


def test_welch_agrees_with_scipy() -> None:
    from scipy import stats

    a, b = [0.6, 0.66, 0.61], [0.5, 0.52]
    difference = seed_difference(
        {i: (v, 0.0) for i, v in enumerate(a)}, {10 + i: (v, 0.0) for i, v in enumerate(b)}, scale=1.0
    )
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert difference.interval == pytest.approx((expected.low, expected.high))


def test_paired_seeds_agree_with_scipy() -> None:
    from scipy import stats

    a, b = [0.6, 0.66, 0.61, 0.7], [0.55, 0.63, 0.54, 0.66]
    sides: list[dict[int | str, tuple[float, float]]] = [{i: (v, 0.0) for i, v in enumerate(side)} for side in (a, b)]
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert seed_difference(sides[0], sides[1], scale=1.0).interval == pytest.approx((expected.low, expected.high))


def test_seeds_that_all_end_alike_have_the_error_of_their_evaluations() -> None:
    sides: list[dict[int | str, tuple[float, float]]] = [{0: (v, 0.01), 1: (v, 0.01)} for v in (0.6, 0.5)]
    assert seed_difference(sides[0], sides[1], scale=1.0).interval == pytest.approx((0.0804, 0.1196))
    nearly: dict[int | str, tuple[float, float]] = {0: (1e-120, 0.01), 1: (0.0, 0.01)}
    assert seed_difference(nearly, nearly, scale=1.0).interval == pytest.approx((-0.0196, 0.0196))


def test_recipes_that_all_end_at_the_top_are_judged() -> None:
    rng = np.random.default_rng(12)
    sides = [
        sweep(same, rng=rng, ns=(32,), seeds=2, recipe={"lr_scaling": scaling}, prefix=f"{scaling}-")
        for scaling in ("sqrt", "constant")
    ]
    full = pl.when(pl.int_range(pl.len()) < 18).then(pl.col("avg@4")).otherwise(1.0).alias("avg@4")
    runs = RunSet(tuple(replace(run, points=run.points.with_columns(full)) for run in _join(*sides)))
    claim = _by_code(runs)["sqrt_beats_constant"]
    assert (claim.verdict, claim.statistic["value"], len(claim.runs)) == ("undecided", 0.0, 4)


def test_the_spread_of_several_seeds_counts_against_a_single_one() -> None:
    """The one is a draw like those of the other side: the mean of five lies off it by their spread and its own."""
    from scipy import stats

    values = (0.5, 0.6, 0.7, 0.55, 0.75)
    several: dict[int | str, tuple[float, float]] = {i: (v, 0.001) for i, v in enumerate(values)}
    one: dict[int | str, tuple[float, float]] = {0: (0.55, 0.001)}
    half = float(stats.t.ppf(0.975, 4)) * float(np.std(values, ddof=1)) * 1.2**0.5
    assert seed_difference(several, one, scale=1.0).interval == pytest.approx((0.07 - half, 0.07 + half))
    assert seed_difference(one, several, scale=1.0).interval == pytest.approx((-0.07 - half, -0.07 + half))
    alike: dict[int | str, tuple[float, float]] = dict.fromkeys(range(5), (0.6, 0.001))
    assert seed_difference(alike, one, scale=1.0).interval[0] < 0.05 - 0.028


def _repeats(levels: dict[str, tuple[float, ...]]) -> RunSet:
    """Repetitions that were all given the seed 0."""
    out: list[Run] = []
    for scaling, shifts in levels.items():
        for i, shift in enumerate(shifts):
            (run,) = sweep(
                lambda n, c, by=shift: same(n, c) + by,
                rng=np.random.default_rng(i),
                ns=(32,),
                seed_spread=0.0,
                recipe={"lr_scaling": scaling},
            )
            out.append(replace(run, name=f"{scaling}-{i}"))
    return RunSet(tuple(out))


def test_repetitions_with_one_seed_all_count() -> None:
    """The same three levels on both sides, in another order: no side is better, whichever came last."""
    claim = _by_code(_repeats({"sqrt": (-0.08, 0.0, 0.08), "constant": (0.08, 0.0, -0.08)}))["sqrt_beats_constant"]
    assert (claim.verdict, claim.statistic["rule"]) == ("undecided", "3 and 3 seeds, Welch")
    assert claim.statistic["value"] == pytest.approx(0.0, abs=0.01)


def test_repetitions_with_one_seed_are_each_in_a_pair_for_spread() -> None:
    near_zero = {"train/zero_pass": lambda n, c: 0.3 - 0.02 * np.log2(n) + 0.0 * c}
    runs = sweep(same, rng=np.random.default_rng(10), ns=(8, 128), seeds=4, noise=0.003, metrics=near_zero)
    alike = [replace(run, settings=run.settings.model_copy(update={"seed": 0})) for run in runs]
    claim = _by_code(RunSet(tuple(alike)))["larger_n_spreads_progress"]
    assert (claim.statistic["pairs"], len(claim.runs)) == (4, 8)


def test_an_optimum_that_is_a_lower_bound_does_not_fail_to_rise() -> None:
    """n = 128 ends early: that 32 leads from there on does not show that n* stands still."""

    def middle(n: int, compute_C: np.ndarray) -> np.ndarray:
        top, half = {8: (0.35, 6e4), 32: (0.5, 3e4), 128: (0.8, 8e5)}[n]
        return np.asarray(0.05 + (top - 0.05) / (1 + (half / compute_C) ** 1.5))

    runs = sweep(middle, rng=np.random.default_rng(1), seeds=3, noise=0.003, points=30)
    cut = [
        replace(run, points=run.points.filter(pl.col("rollouts") < 2.6e4))
        if run.settings.rollouts_per_problem == 128
        else run
        for run in runs
    ]
    claim = _by_code(RunSet(tuple(cut)))["optimum_rises"]
    assert claim.verdict == "undecided"
    assert claim.needs == "n above 32 run to the end of the range: the next larger one ends before"


@pytest.mark.parametrize(
    ("sign", "needs"),
    [
        (1, "n above 128: the largest n leads at the end"),
        (-1, "n below 8: the smallest n led at every compute"),
    ],
)
def test_an_edge_that_leads_everywhere_asks_for_what_lies_beyond(sign: int, needs: str) -> None:
    def tilted(n: int, compute_C: np.ndarray) -> np.ndarray:
        return same(n, compute_C) + sign * 0.03 * np.log2(n / 32)

    claim = _by_code(sweep(tilted, rng=np.random.default_rng(1), seeds=3))["optimum_rises"]
    assert (claim.verdict, claim.needs) == ("undecided", needs)


@pytest.mark.parametrize(("gain", "verdict"), [(-0.2, "holds"), (0.0, "holds"), (0.2, "fails")])
def test_a_decoupled_baseline_may_be_worse_but_not_better(gain: float, verdict: str) -> None:
    rng = np.random.default_rng(13)
    runs = _join(
        sweep(
            lambda n, c: same(n, c) + gain * (1 - np.exp(-c / 1e5)),
            rng=rng,
            ns=(32,),
            seeds=3,
            seed_spread=0.003,
            recipe={"baseline_rollouts": 64, "loss": "clip"},
            prefix="more-",
        ),
        sweep(same, rng=rng, ns=(32,), seeds=3, seed_spread=0.003, recipe={"loss": "clip"}, prefix="alone-"),
    )
    assert _by_code(runs)["decoupled_baseline_same"].verdict == verdict


def test_one_seed_is_never_surer_than_the_papers_error() -> None:
    difference = seed_difference({0: (0.61, 0.001)}, {0: (0.60, 0.001)}, scale=1.0)
    assert difference.interval[0] < -0.018
    assert difference.interval[1] > 0.038
    assert combined([difference, difference]).interval[1] < difference.interval[1]


def test_what_intervals_decide() -> None:
    assert [above(i) for i in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1))] == ["holds", "fails", "undecided"]
    assert [no_better(i, 0.5) for i in ((-9.0, 0.2), (0.6, 0.9), (0.1, 0.9))] == ["holds", "fails", "undecided"]
    assert [inside(i, 0.5) for i in ((-0.1, 0.2), (0.6, 0.9), (0.1, 0.9))] == ["holds", "fails", "undecided"]


def test_one_seed_does_not_tell_the_optima_of_two_metrics_apart() -> None:
    """best@4 leads at n = 128 and worst@4 at n = 8, each by .006: four seeds that agree say so, one cannot."""

    def lifted(of: int, level: float) -> Truth:
        return lambda n, compute_C: level * same(n, compute_C) + 0.006 * (n == of)

    metrics = {"best@4": lifted(128, 1.2), "worst@4": lifted(8, 0.8)}

    def verdict(seeds: int) -> str:
        rng = np.random.default_rng(3)
        runs = sweep(same, rng=rng, seeds=seeds, noise=0.0008, seed_spread=0.0, problems="hard", metrics=metrics)
        return _by_code(runs)["best_wants_larger_n_hard"].verdict

    assert verdict(1) == "undecided"
    assert verdict(4) == "holds"
