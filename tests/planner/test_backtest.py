"""Plans tested on finished runs, against sweeps whose best setting is known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import isocompute
from isocompute.core.curve import Curve
from isocompute.planner.backtest import backtest_curves
from tests.commands import Call, fails


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "plan")


def curve(n: int, *, seed: int = 0, half: float = 2e4, ceiling: float = 0.9, end: float = 1e6) -> Curve:
    """A sigmoid from .2 to its ceiling, half-way at `half` rollouts, with a little noise."""
    compute_C = np.geomspace(500, end, 40)
    noise_C = 0.001 * np.random.default_rng([n, seed]).standard_normal(40)
    value_C = 0.2 + (ceiling - 0.2) / (1 + (half / compute_C) ** 1.3) + noise_C
    return Curve(f"{n}-{seed}", compute_C, value_C, 32, n, seed=seed)


def test_an_n_that_leads_throughout_is_planned_and_loses_nothing() -> None:
    curves = [curve(n, seed=seed, half=2e3 * n) for n in (4, 16, 64) for seed in (0, 1)]
    tests = backtest_curves(curves, [1e6, 2.5e5], metric="avg@4", replicates=60)
    assert [test.budget for test in tests] == [1e6, 2.5e5]
    for test in tests:
        assert len(test.settings) == 3
        assert test.planned_setting == (32, 4) and test.planned is not None
        assert test.planned.regret == 0.0 and test.best == test.planned == test.leader
        assert test.error is None and not test.left_out


def test_a_law_of_some_seeds_is_held_against_all_of_them() -> None:
    """Seed 0 of n = 64 is lucky by more than anything differs: a law of seed 0 plans it, and all seeds tell."""
    even = [curve(n, seed=seed) for n in (4, 16, 64) for seed in (0, 1, 2)]
    curves = [c if c.name != "64-0" else curve(64, ceiling=0.98) for c in even]
    (lucky,) = backtest_curves(curves, [1e6], metric="avg@4", replicates=60, law_seeds={0})
    (other,) = backtest_curves(curves, [1e6], metric="avg@4", replicates=60, law_seeds={1, 2})
    assert lucky.planned_setting == (32, 64)
    assert lucky.settings == other.settings and lucky.best == other.best, "the truth is of all seeds either way"
    assert lucky.best.value == pytest.approx(0.9 + 0.08 / 3, abs=0.01)
    (alone,) = backtest_curves([c for c in curves if c.seed], [1e6], metric="avg@4", replicates=60)
    assert other.planned_setting == alone.planned_setting


def test_what_was_lost_is_the_distance_to_the_best() -> None:
    """n = 64 has reached nothing at C/8 and is best at C: the regret is reported, though no run showed it."""
    late = np.geomspace(500, 1e6, 40)
    sudden = Curve("64", late, np.where(late < 3e5, 0.2, 0.99), 32, 64, seed=0)
    (test,) = backtest_curves([curve(4), curve(16), sudden], [1e6], metric="avg@4", replicates=60)
    assert (test.best.rollouts_per_problem, test.best.value) == (64, pytest.approx(0.99, abs=0.01))
    assert test.planned is not None and test.planned.rollouts_per_problem in (4, 16)
    own = curve(test.planned.rollouts_per_problem)
    assert test.planned.regret == pytest.approx(0.99 - own.values_C.max(), abs=0.02)
    assert test.error is None, "one seed each says nothing of an error"
    two = [curve(4), curve(16), sudden, curve(4, seed=1), curve(16, seed=1), replace(sudden, name="64b", seed=1)]
    (test,) = backtest_curves(two, [1e6], metric="avg@4", replicates=60)
    alone = [
        backtest_curves([curve(n, seed=s) for n in (4, 16)], [1e6], metric="avg@4", replicates=60)[0] for s in (0, 1)
    ]
    own = [next(o.value for o in t.settings if o.rollouts_per_problem == test.planned_setting[1]) for t in alone]
    assert test.error == pytest.approx(abs(own[0] - own[1]) / 2)  # of two seeds: half of their distance


def test_settings_are_compared_at_the_same_compute() -> None:
    """n = 8 was evaluated at 8e4 and 3.2e5, n = 16, a little behind, at 1.6e5: at 1.6e5 n = 8 is half of the way up."""
    early_C = np.geomspace(500, 8e4, 12)
    grids = {8: np.append(early_C, 3.2e5), 16: np.append(early_C, 1.6e5)}
    curves = [
        Curve(f"{n}", compute_C, 0.6 + 0.05 * np.log2(compute_C / 8e4) - 0.01 * (n == 16), 32, n, seed=0)
        for n, compute_C in grids.items()
    ]
    (test,) = backtest_curves(curves, [1.6e5], metric="avg@4", replicates=60)
    values = {one.rollouts_per_problem: one.value for one in test.settings}
    assert values == {8: pytest.approx(0.65, abs=0.005), 16: pytest.approx(0.64, abs=0.005)}


def test_a_run_that_is_evaluated_oftener_has_not_reached_more() -> None:
    """The same curve under noise .01 at 20 and at 200 evaluations: their maxima differ by .01, their levels do not."""
    rng = np.random.default_rng(0)
    reached: dict[int, list[float]] = {4: [], 16: []}
    for _ in range(20):
        curves = []
        for n, count in ((4, 200), (16, 20)):
            compute_C = np.geomspace(500, 1e6, count)
            values_C = 0.2 + 0.4 * (1 - np.exp(-compute_C / 5e4)) + 0.01 * rng.standard_normal(count)
            curves.append(Curve(f"{n}", compute_C, values_C, 32, n, seed=0))
        (test,) = backtest_curves(curves, [1e6], metric="avg@4", replicates=60)
        for one in test.settings:
            reached[one.rollouts_per_problem].append(one.value)
    assert np.mean(reached[4]) == pytest.approx(np.mean(reached[16]), abs=0.005)
    assert np.mean(reached[4] + reached[16]) == pytest.approx(0.6, abs=0.006)


def test_only_settings_that_go_to_the_end_take_part() -> None:
    curves = [curve(4, half=1e3, end=2e5), curve(16), curve(64, half=1e5)]
    (test,) = backtest_curves(curves, [1e6], metric="avg@4", replicates=60)
    assert {one.rollouts_per_problem for one in test.settings} == {16, 64} and test.left_out == ((32, 4),)
    assert test.leader.rollouts_per_problem == 16


def test_a_run_that_diverged_counts_with_the_best_it_had() -> None:
    """One of four seeds of n = 4 ends half-way up: the setting takes part, worth less. Two of five are too many."""
    died = replace(curve(4, seed=3, half=4e3, end=4e3), name="died")
    curves = [*(curve(4, seed=seed, half=4e3) for seed in range(3)), died, curve(16), curve(64, half=1e5)]
    (test,) = backtest_curves(curves, [1e6], metric="avg@4", replicates=60)
    value = {one.rollouts_per_problem: one.value for one in test.settings}[4]
    assert value == pytest.approx(np.mean([of.values_C.max() for of in curves[:4]]), abs=0.005)
    assert not test.left_out
    (test,) = backtest_curves([*curves, replace(died, name="too")], [1e6], metric="avg@4", replicates=60)
    assert test.left_out == ((32, 4),)


def test_a_run_whose_last_update_ends_just_below_has_gone_so_far() -> None:
    curves = [curve(4, end=9.8e5), curve(16), curve(64, end=9.6e5)]
    (test,) = backtest_curves(curves, [1e6], metric="avg@4", replicates=60)
    assert test.left_out == ((32, 64),)


def test_nothing_that_comes_after_an_eighth_is_known() -> None:
    """n = 64 jumps just behind C/8: leader and plan are as if it never had."""
    at_C = np.geomspace(500, 1e6, 40)
    first = at_C[at_C > 1e6 / 8][0]
    jumped = replace(curve(64, half=4e5), values_C=np.where(at_C >= first, 0.95, curve(64, half=4e5).values_C))
    budget = float(first) * 8 / 1.01
    tests = [
        backtest_curves([curve(4), curve(16), other], [min(budget, 1e6)], metric="avg@4", replicates=60)[0]
        for other in (jumped, curve(64, half=4e5))
    ]
    assert tests[0].planned_setting == tests[1].planned_setting
    assert tests[0].leader.rollouts_per_problem == tests[1].leader.rollouts_per_problem


def sweep(path: Path, *, end: float = 4e5) -> Path:
    """A table of three n with two seeds."""
    lines = ["problems_per_batch,rollouts_per_problem,seed,rollouts,avg@4"]
    lines += [f"32,{n},{seed},0,.2" for n in (4, 16, 64) for seed in (0, 1)]  # as the engines log the base
    for n in (4, 16, 64):
        for seed in (0, 1):
            of = curve(n, seed=seed, half=2e3 * n, end=end)
            lines += [f"32,{n},{seed},{c:.0f},{v:.5f}" for c, v in zip(of.compute_C, of.values_C, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_command(call: Call, tmp_path: Path) -> None:
    path = sweep(tmp_path / "sweep.csv")
    result = call("--law", path, "--backtest", "--replicates", "60").out
    assert "Plans from an eighth of the compute" in result
    assert "32 × 4" in result and "Plans lost 0.0000 on average, 0.0000 at most." in result
    data = call("--law", path, "--backtest", "--budget", "2e5", "--replicates", "60", "--json").json
    (test,) = data["tests"]
    assert (data["metric"], data["ahead"], test["budget"]) == ("avg@4", 8.0, 2e5)
    assert test["planned"]["rollouts_per_problem"] == test["best"]["rollouts_per_problem"] == 4
    assert [one["rollouts_per_problem"] for one in test["settings"]] == [4, 16, 64]
    (same,), _ = isocompute.backtest_plans(path, budget=2e5, replicates=60)
    assert same.best.value == test["best"]["value"]


def test_runs_of_another_recipe_are_left_out_aloud(call: Call, tmp_path: Path) -> None:
    lines = ["problems_per_batch,rollouts_per_problem,seed,lr,rollouts,avg@4"]
    for seed, lr, ceiling in ((0, "1e-6", 0.9), (1, "1e-7", 0.8)):
        for n in (4, 16, 64):
            of = curve(n, half=2e3 * n, ceiling=ceiling, end=4e5)
            lines += [f"32,{n},{seed},{lr},{c:.0f},{v:.5f}" for c, v in zip(of.compute_C, of.values_C, strict=True)]
    two = tmp_path / "two.csv"
    two.write_text("\n".join(lines))
    result = call("--law", two, "--backtest", "--budget", "2e5", "--replicates", "60")
    assert result.code == 0 and "tested on 3 of its runs with learning_rate 1e-06" in result.err


def test_what_cannot_be_tested(call: Call, tmp_path: Path) -> None:
    path = sweep(tmp_path / "sweep.csv")
    fails(call("--law", "isocompute/bp32-easy", "--backtest"), "it makes plans for finished runs")
    fails(call("--backtest"), "name them: --law RUNS")
    for option in (("--n", "8"), ("--next", "2"), ("--max-batch", "64"), ("--out", "x.toml")):
        fails(call("--law", path, "--backtest", *option), f"{option[0]} does not go with --backtest")
    fails(call("--law", path, "--backtest", "--budget", "$20"), "give rollouts that the runs have used")
    fails(call("--law", path, "--backtest", "--budget", "9e9"), "two go to 400,000 rollouts")
    one = tmp_path / "one.csv"
    one.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith(("32,16", "32,64"))))
    fails(call("--law", one, "--backtest"), "runs of several n")
    fails(call("--law", tmp_path / "gone", "--backtest"), "gone is not a folder or table")
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(line.partition(",")[2] for line in path.read_text().splitlines()))
    fails(call("--law", bare, "--backtest"), "give --problems-per-batch")
    asked = ("--backtest", "--problems-per-batch", "32", "--budget", "2e5", "--replicates", "60", "--json")
    assert call("--law", bare, *asked).json["tests"][0]["planned"]["problems_per_batch"] == 32


@pytest.mark.parametrize(
    "option",
    [
        ("--gpu", "H100"),
        ("--model", "config.json"),
        ("--rollouts-per-second", "3"),
        ("--throughput-from", "runs"),
        ("--response-tokens", "500"),
        ("--lr-reference", "1e-6@1024"),
        ("--truncated", "0"),
        ("--pass-rate-column", "rate"),
    ],
)
def test_options_that_it_does_not_read_are_refused(call: Call, option: tuple[str, str]) -> None:
    fails(call("--law", "runs", "--backtest", *option), f"{option[0]} does not go with --backtest")
