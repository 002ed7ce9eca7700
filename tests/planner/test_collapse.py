"""Runs that collapsed: a plan expects the reward of the best checkpoint, and reports how many runs collapsed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

import isocompute
from isocompute.cli.plan_display import show
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law
from isocompute.law.store import write_law
from isocompute.planner.decide import Plan, plan_to_json
from isocompute.planner.law import Survival
from tests.planner.made_up import write_timed

ENDS = 1e6


def run(n: int, seed: int, *, falls_at: float | None = None, lead: float = 0.0) -> Curve:
    """avg@4 rising to .6, and from `falls_at` on back at the base."""
    rng = np.random.default_rng([n, seed])
    compute_C = np.geomspace(4e3, ENDS, 40)
    value_C = 0.3 + (0.3 + lead) / (1 + (2e4 / compute_C) ** 1.2) + 0.003 * rng.standard_normal(40)
    if falls_at is not None:
        value_C = np.where(compute_C > falls_at, 0.31, value_C)
    return Curve(f"{n}-{seed}", compute_C, value_C, 32, n, seed=seed)


def sweep(falls: Sequence[float | None]) -> list[Curve]:
    """n = 8, which leads by a little and whose runs fall so, and n = 32, whose runs hold."""
    leading = [run(8, seed, falls_at=at, lead=0.001) for seed, at in enumerate(falls)]
    return leading + [run(32, seed) for seed in range(3)]


def plan_of(curves: list[Curve], budget: float, tmp_path: Path) -> Plan:
    """From the law, and from its file, which must say the same."""
    law = fit_law(curves, metric="avg@4", replicates=100)
    write_law(law, tmp_path / "law.json")
    here = isocompute.plan(budget=budget, law=law)
    there = isocompute.plan(budget=budget, law=tmp_path / "law.json")
    assert plan_to_json(here)["falls"] == plan_to_json(there)["falls"]
    assert [w.message for w in here.warnings if w.code == "falls"] == [
        w.message for w in there.warnings if w.code == "falls"
    ]
    return here


def test_a_plan_says_how_many_runs_of_its_setting_fell_and_which_setting_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(sweep([3e5, 2e5, None]), 9e5, tmp_path)
    assert plan.allocation.rollouts_per_problem == 8
    (message,) = [w.message for w in plan.warnings if w.code == "falls"]
    first = max(c for c in np.geomspace(4e3, ENDS, 40) if c <= 2e5)
    assert message.startswith(f"2 of 3 runs of 32 × 8 collapsed, the first after {first / 1e3:.0f}k rollouts")
    assert "32 × 32" in message and "was stable in all its 3 runs" in message
    result = plan_to_json(plan)
    assert (result["falls"]["runs"], result["falls"]["fallen"]) == (3, 2)
    assert result["alternatives"][0]["falls"] == {
        "runs": 3,
        "fallen": 0,
        "share": 0.0,
        "interval": [0.0, pytest.approx(stats.beta(0.5, 3.5).ppf(0.9))],
    }
    show(plan)
    assert "collapsed runs" in (out := capsys.readouterr().out) and "2 of 3" in out


def test_falls_are_counted_in_a_table_of_runs_too(tmp_path: Path) -> None:
    rows = [
        {"bp": 32, "n": c.rollouts_per_problem, "seed": c.seed, "rollouts": x, "avg@4": y}
        for c in sweep([3e5, 2e5, None])
        for x, y in zip(c.compute_C.tolist(), c.values_C.tolist(), strict=True)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "runs.csv")
    plan = isocompute.plan(budget=9e5, law=tmp_path / "runs.csv", replicates=100)
    result = plan_to_json(plan)["falls"]
    assert (result["runs"], result["fallen"]) == (3, 2)


def test_runs_that_fell_before_they_had_a_curve_are_counted(tmp_path: Path) -> None:
    lost = [run(8, seed, falls_at=5e3) for seed in (3, 4)]
    assert [c.values_C[3] for c in lost] == [0.31, 0.31]
    for curve in lost:
        curve.values_C[2:] = 0.01
    plan = plan_of([*sweep([None, None, None]), *lost], 9e5, tmp_path)
    result = plan_to_json(plan)
    falls = {o["rollouts_per_problem"]: o["falls"] for o in (result, *result["alternatives"])}
    assert (falls[8]["runs"], falls[8]["fallen"], falls[32]["fallen"]) == (5, 2, 0)


def test_a_budget_that_ends_before_the_first_fall_is_not_warned_of(tmp_path: Path) -> None:
    plan = plan_of(sweep([3e5, 2e5, None]), 1e5, tmp_path)
    assert "falls" not in {w.code for w in plan.warnings}
    assert plan_to_json(plan)["falls"]["fallen"] == 0


def test_where_no_run_fell_the_table_does_not_speak_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(sweep([None, None, None]), 9e5, tmp_path)
    show(plan)
    assert "collapsed" not in capsys.readouterr().out


def test_where_every_setting_fell_none_is_said_to_hold() -> None:
    curves = [run(n, seed, falls_at=3e5) for n in (8, 32) for seed in range(2)]
    plan = isocompute.plan(budget=9e5, law=fit_law(curves, metric="avg@4", replicates=100))
    (message,) = [w.message for w in plan.warnings if w.code == "falls"]
    assert message.startswith("2 of 2 runs")
    assert message.endswith("no setting that ties with it was stable in all its runs")


def test_a_published_law_knows_no_runs() -> None:
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy")
    assert plan_to_json(plan)["falls"] is None


@pytest.mark.parametrize(("runs", "collapsed"), [(3, 1), (12, 1), (16, 7)])
def test_the_share_that_falls_has_jeffreys_interval(runs: int, collapsed: int) -> None:
    found = Survival((1e5,) * collapsed, (1e6,) * (runs - collapsed)).by(1e6)
    assert found is not None and (found.runs, found.collapsed) == (runs, collapsed)
    assert found.share == pytest.approx(collapsed / runs)
    expected = stats.beta(collapsed + 0.5, runs - collapsed + 0.5).interval(0.8)
    assert found.interval() == pytest.approx(expected, rel=1e-9)


def test_none_and_all_reach_to_the_end() -> None:
    none, all_of_them = Survival((), (1e6,) * 4).by(1e6), Survival((1e5, 2e5, 2e5, 3e5), ()).by(1e6)
    assert none is not None and none.interval()[0] == 0.0
    assert all_of_them is not None and all_of_them.share == 1.0
    assert all_of_them.interval() == (pytest.approx(stats.beta(4.5, 0.5).ppf(0.1)), 1.0)


def test_runs_that_ended_before_a_compute_are_not_said_to_have_held_it() -> None:
    def result(fell: tuple[float, ...], healthy: tuple[float, ...], at: float) -> tuple[int, int, float | None] | None:
        found = Survival(fell, healthy).by(at)
        return None if found is None else (found.runs, found.collapsed, found.first)

    assert result((), (1e6, 1e6, 1e6), 1.05e6) == (3, 0, None)
    assert result((), (1e6, 1e6, 1e6), 4e6) is None
    assert result((2e5,), (1e6, 1e6), 4e6) == (3, 1, 2e5)
    assert result((), (2e3, 2e3, 2e3, 1e6), 1e6) == (1, 0, None)
    assert result((2e5, 8e5), (1e5, 1e6), 5e5) == (3, 1, 2e5)


def test_runs_count_as_long_as_they_were_watched() -> None:
    """Twelve seeds to 1M, of which one falls, and four to 2M, of which one falls late: by hand."""
    found = Survival((7.6e5, 1.5e6), (1e6,) * 11 + (2e6,) * 3).by(2e6)
    assert found is not None and (found.runs, found.collapsed) == (16, 2)
    holds = 15 / 16 * 3 / 4
    assert found.share == pytest.approx(1 - holds)
    assert found.effective == pytest.approx(3 / holds)
    assert str(found) == "2 of 16 (30%)"
    lost = Survival((2e5, 5e5), (3e5, 3e5)).by(1e6)  # after 300k one run is left, and falls
    assert lost is not None and lost.share == 1.0 and lost.effective == pytest.approx(1 / (3 / 4))


def test_the_share_is_not_biased_by_runs_that_end_in_good_health() -> None:
    """Every run falls by 2M with probability .36; three in four are only watched to 1M."""
    rng = np.random.default_rng(0)
    watched_R = np.where(np.arange(4000) % 4 == 0, 2e6, 1e6)
    falls_R = rng.exponential(2e6 / -np.log(1 - 0.36), 4000)
    fell, healthy = falls_R[falls_R < watched_R], watched_R[falls_R >= watched_R]
    found = Survival(tuple(sorted(fell.tolist())), tuple(sorted(healthy.tolist()))).by(2e6)
    assert found is not None and found.share == pytest.approx(0.36, abs=0.03)
    low, high = found.interval()
    assert low < found.share < high and 0.01 < high - low < 0.06


def test_runs_of_different_length_say_the_same_here_and_in_a_file(tmp_path: Path) -> None:
    def cut(curve: Curve) -> Curve:
        return replace(curve, compute_C=curve.compute_C[:34], values_C=curve.values_C[:34])

    short = [cut(run(8, seed, lead=0.001)) for seed in range(4, 10)]
    curves = [*sweep([6e5, None, None, None]), *short]
    assert max(c.compute_C[-1] for c in short) < 5e5
    plan = plan_of(curves, 9e5, tmp_path)  # looks at both
    falls = plan_to_json(plan)["falls"]
    assert (falls["runs"], falls["fallen"], falls["share"]) == (4, 1, 0.25)
    kept = json.loads((tmp_path / "law.json").read_text())
    for curve in kept["curves"]:
        del curve["last"]
    (tmp_path / "before.json").write_text(json.dumps(kept))
    before = isocompute.plan(budget=9e5, law=tmp_path / "before.json")
    assert plan_to_json(before)["falls"]["fallen"] == 1


def priced(curves: list[Curve], budget: float, rates: dict[int, float], folder: Path) -> Plan:
    """The plan where n = 8 is known to cost more than the other n."""
    law = fit_law(curves, metric="avg@4", replicates=100)
    return isocompute.plan(budget=budget, law=law, timed_runs=write_timed(folder, rates))


def test_a_cheaper_setting_that_collapses_more_often_by_share_is_not_the_default(tmp_path: Path) -> None:
    """n = 32 has fewer collapses in its runs, but most of those ended before: of four that went on two collapsed."""
    leading = [run(8, seed, falls_at=7e5 if seed < 3 else None, lead=0.002) for seed in range(10)]
    ended = [run(32, seed) for seed in range(4, 20)]
    ended = [replace(c, compute_C=c.compute_C[:34], values_C=c.values_C[:34]) for c in ended]
    going = [run(32, seed, falls_at=(2e5, 7e5, None, None)[seed]) for seed in range(4)]
    plan = priced(leading + ended + going, 9e5, {8: 2.0, 32: 6.0}, tmp_path)
    assert plan.allocation.rollouts_per_problem == 8
    (other,) = plan.alternatives
    assert other.ranked.ties and other.collapses is not None and plan.chosen.collapses is not None
    assert (other.collapses.collapsed, other.collapses.runs) == (2, 20)
    assert other.collapses.share > plan.chosen.collapses.share == pytest.approx(0.3)


def test_nothing_is_expected_of_a_setting_beyond_where_all_its_runs_fell() -> None:
    """n = 32 rises later and higher, and both of its runs fall half-way up."""
    compute_C = np.geomspace(4e3, ENDS, 40)

    def one(n: int, seed: int, *, falls: bool) -> Curve:
        half = 2e4 if n == 8 else 2e5
        noise_C = 0.003 * np.random.default_rng([n, seed]).standard_normal(40)
        value_C = 0.3 + (0.3 if n == 8 else 0.5) / (1 + (half / compute_C) ** 1.2) + noise_C
        return Curve(f"{n}-{seed}", compute_C, np.where(falls & (compute_C > 1.5e5), 0.05, value_C), 32, n, seed=seed)

    def plan_with(*, falls: bool) -> Plan:
        curves = [one(8, s, falls=False) for s in (0, 1)] + [one(32, s, falls=falls) for s in (0, 1)]
        return isocompute.plan(budget=9e5, law=fit_law(curves, metric="avg@4", replicates=100))

    assert plan_with(falls=False).allocation.rollouts_per_problem == 32
    plan = plan_with(falls=True)
    (other,) = plan.alternatives
    assert plan.allocation.rollouts_per_problem == 8
    assert other.ranked.value == pytest.approx(0.3 + 0.5 / (1 + (2e5 / 1.5e5) ** 1.2), abs=0.03)


def test_a_cheaper_tie_is_the_default_unless_its_runs_collapsed(tmp_path: Path) -> None:
    """n = 32 costs a third of n = 8 and ties with it; where two of its three runs collapsed, it saves nothing."""
    steady = [run(8, seed, lead=0.001) for seed in range(3)]
    for falls, default in (((None, None, None), 32), ((3e5, 2e5, None), 8)):
        curves = steady + [run(32, seed, falls_at=at) for seed, at in enumerate(falls)]
        plan = priced(curves, 9e5, {8: 2.0, 32: 6.0}, tmp_path)
        assert [o.ranked.ties for o in plan.alternatives] == [True]
        assert plan.allocation.rollouts_per_problem == default


def test_a_cheaper_run_that_is_mostly_warm_up_is_not_the_default(tmp_path: Path) -> None:
    curves = [run(n, seed, lead=0.001 * (n == 8)) for n in (8, 1024) for seed in range(3)]
    plan = priced(curves, 5e5, {8: 2.0, 1024: 6.0}, tmp_path)
    (other,) = plan.alternatives
    assert (plan.allocation.rollouts_per_problem, other.allocation.rollouts_per_problem) == (8, 1024)
    assert other.ranked.ties
