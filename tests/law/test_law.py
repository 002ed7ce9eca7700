"""From curves to the law: the paper's own figure, known crossings, edges, trade-offs, the joint surface."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.frontier import Movement, Reading, fit_optima
from isocompute.law.law import fit_law
from isocompute.law.store import read_law, write_law
from tests.law.made_up import FIGURE_6_EASY, FIGURE_6_HARD, exponential, figure_6, hill, noisy


def test_figure_6_switches_and_midpoint() -> None:
    """What the IsoCompute paper draws: where n switches at Bp = 32, the midpoint 5.84 and the ceilings 452 and 153."""
    easy = fit_law(figure_6(FIGURE_6_EASY), metric="avg@4", replicates=100)
    steps = [(s.before, s.after) for s in easy.joint.frontier.switches]
    assert steps == [(0, 1), (1, 2), (2, 3), (3, 4)]
    at = [s.compute / 1e6 for s in easy.joint.frontier.switches]
    for found, (low, high) in zip(at, [(0.25, 0.27), (0.81, 0.85), (1.27, 1.27), (2.69, 2.69)], strict=True):
        assert low * 0.95 <= found <= high * 1.05
    best = easy.joint.rollouts
    assert best is not None
    assert abs(best.log10_C0 - 5.84) < 0.2
    assert 452 / 1.5 < best.ceiling < 452 * 1.5
    assert best.rises and best.ceiling_bound == ">=" and not best.saturates  # 512 is the largest n of this figure

    hard = fit_law(figure_6(FIGURE_6_HARD), metric="avg@4", replicates=100)
    (switch,) = hard.joint.frontier.switches
    assert switch.compute / 1e6 == pytest.approx(0.76, rel=0.05)
    assert hard.joint.rollouts is not None
    assert 153 / 1.5 < hard.joint.rollouts.ceiling < 153 * 1.5
    assert hard.joint.rollouts.k_at_bound  # one jump has no slope


def test_switch_is_where_the_curves_cross() -> None:
    compute = np.linspace(0.05, 5, 60)
    small = Curve("small", compute, exponential(compute, 0.58, 0.15, 0.3), 32, 8)
    large = Curve("large", compute, exponential(compute, 0.64, 0.25, 1.1), 32, 64)
    law = fit_law([small, large], metric="avg@4", replicates=100)
    (switch,) = law.joint.frontier.switches
    truth = brentq(
        lambda c: float(exponential(np.array(c), 0.58, 0.15, 0.3) - exponential(np.array(c), 0.64, 0.25, 1.1)), 0.1, 4
    )
    assert switch.crosses
    assert switch.compute == pytest.approx(truth, rel=5e-3)


def test_frontier_is_the_upper_envelope() -> None:
    law = fit_law(figure_6(FIGURE_6_EASY, noise=0.003), metric="avg@4", replicates=100)
    front = law.joint.frontier
    for fit in law.settings:
        inside = (front.compute_C >= fit.first) & (front.compute_C <= fit.last)
        assert (front.values_C[inside] >= fit.at(front.compute_C[inside]) - 1e-12).all()
    assert (np.diff(front.values_C) >= -1e-9).all()


def test_probabilities_sum_to_one_and_follow_the_noise() -> None:
    data = fit_law(figure_6(FIGURE_6_EASY, noise=0.01), metric="avg@4", replicates=200).to_json()
    for row in data["best"]:
        assert sum(row["probability"].values()) == pytest.approx(1.0)
        assert set(row["probability"]) <= {"8", "32", "128", "256", "512"}
    near_a_switch = min(data["best"], key=lambda row: abs(np.log(row["compute"] / 1.27e6)))
    assert max(near_a_switch["probability"].values()) < 0.95
    assert data["best"][-1]["probability"]["512"] > 0.9


def test_with_one_seed_a_lead_under_the_margin_is_not_sure() -> None:
    """n = 32 ends slightly above n = 8, which may be chance for one seed, but not for three that agree."""
    compute_C = np.geomspace(1e4, 1e6, 30)

    def noise(rng: np.random.Generator) -> np.ndarray:
        return 0.001 * rng.standard_normal(30)

    def at_the_end(seeds: int, lead: float) -> list[float]:
        rng = np.random.default_rng(5)
        curves = [
            Curve(f"{n}-{s}", compute_C, hill(compute_C, 0.2, top, 4e4, 2.0) + noise(rng), 32, n, seed=s)
            for n, top in ((8, 0.6), (32, 0.6 + lead))
            for s in range(seeds)
        ]
        law = fit_law(curves, metric="avg@4", replicates=300)
        best = law.joint.rollouts
        assert best is not None
        assert best.estimate_C[-1] == 32
        assert any("one seed a setting" in note for note in law.notes) == (seeds == 1)
        return list(best.interval_C2[-1])

    assert at_the_end(1, 0.01) == [8, 32]
    assert at_the_end(2, 0.005) == [8, 32]
    assert at_the_end(3, 0.01) == [32, 32]
    assert at_the_end(1, 0.04) == [32, 32]


def test_a_collapse_that_is_left_out_makes_no_other_n_less_sure() -> None:
    """The margin between seeds is a share of the scale of the fitted points, not of a penalty at the end."""
    compute_C = np.geomspace(1e4, 1e6, 30)
    low_C, high_C = hill(compute_C, 0.2, 0.6, 2e4, 2.0), hill(compute_C, 0.2, 0.9, 2e5, 2.0)
    for values_C in (low_C, np.where(compute_C > 5e5, -20.0, low_C)):
        curves = [Curve("4", compute_C, values_C, 32, 4), Curve("64", compute_C, high_C, 32, 64)]
        best = fit_law(curves, metric="reward", replicates=200).joint.rollouts
        assert best is not None and best.direction == "rises"
        assert list(best.interval_C2[-1]) == [64, 64]


def test_every_parameter_has_an_interval_around_it() -> None:
    data = fit_law(grid(), metric="avg@4", replicates=100).to_json()
    for curve in data["curves"]:
        pairs = [(curve["base"], curve["base_interval"]), (curve["asymptote"], curve["asymptote_interval"])]
        pairs += [(curve["parameters"][name], curve["parameter_intervals"][name]) for name in curve["parameters"]]
        assert all(low <= value <= high for value, (low, high) in pairs)
        assert any(high > low for _, (low, high) in pairs)
    best = data["optimal_rollouts"]
    assert all(best[f"{name}_interval"][0] <= best[f"{name}_interval"][1] for name in ("L", "k", "b", "log10_C0"))
    surface = data["surface"]
    inside = [
        low <= value <= high
        for value, (low, high) in zip(surface["coefficients"], surface["coefficient_intervals"], strict=True)
    ]
    assert np.mean(inside) > 0.8


def test_interior_optimum_is_a_value_and_saturates() -> None:
    """Ceilings that peak at n = 64, with larger n run and beaten: n* levels off inside the data."""
    curves = []
    for n in (4, 16, 64, 256, 1024):
        compute = np.geomspace(32 * n * 2, 3e7, 60)
        ceiling = 0.6 - 0.012 * (np.log2(n) - 6) ** 2 * (1.0 if n > 64 else 0.35)
        curves.append(noisy(f"{n}", compute, hill(compute, 0.3, ceiling, 3e3 * n, 1.3), noise=0.002, seed=n))
        curves[-1] = Curve(f"{n}", compute, curves[-1].values_C, 32, n)
    best = fit_law(curves, metric="avg@4", replicates=200).joint.rollouts
    assert best is not None
    assert best.saturates and best.ceiling_bound is None
    assert best.ceiling_interval[0] <= 64 * 1.01 and 40 < best.ceiling < 100


def test_edges_are_bounds_not_values() -> None:
    """The smallest n wins everywhere: all that is known is n* <= 8."""
    compute = np.linspace(1e4, 1e6, 40)
    curves = [
        Curve(f"{n}", compute, hill(compute, 0.3, 0.7 - 0.02 * np.log2(n), 1e5, 1.5), 32, n) for n in (8, 32, 128)
    ]
    law = fit_law(curves, metric="avg@4", replicates=100)
    assert law.joint.rollouts is not None and law.joint.rollouts.floor_bound == law.joint.rollouts.ceiling_bound == "<="
    assert not law.joint.rollouts.rises
    data = law.to_json()
    assert {row["bound"] for row in data["frontier"]} == {"<="}
    assert any("n* ≤ 8" in note and "run smaller n" in note for note in data["notes"])


def test_no_effect_of_n_is_not_a_rise() -> None:
    """The same curve for every n, evaluated every ten steps or on a log grid: n* must not be reported to rise."""
    verdicts = []
    for draw in range(6):
        for spacing in ("steps", "log"):
            curves = []
            for n in (8, 16, 32, 64, 128):
                steps = np.arange(0, 401, 10) if spacing == "steps" else np.geomspace(2, 1e6 / (32 * n), 40)
                compute = steps * 32.0 * n
                truth = hill(np.maximum(compute, 1e-9), 0.3, 0.6, 6e4, 1.3)
                curve = noisy(f"{n}", compute, truth, noise=0.01, seed=100 * draw + n)
                curves.append(Curve(f"{n}", compute, curve.values_C, 32, n))
            best = fit_law(curves, metric="avg@4", replicates=100).joint.rollouts
            assert best is not None
            verdicts.append(best.direction)
            assert best.probability_rises < 0.97
    assert verdicts.count("rises") <= 2


def test_a_falling_optimum_falls() -> None:
    compute = np.geomspace(1e4, 1e7, 50)
    curves = [
        Curve(f"{n}", compute, hill(compute, 0.3, ceiling, midpoint, 1.5), 32, n)
        for n, ceiling, midpoint in ((8, 0.70, 4e5), (16, 0.62, 1.2e5), (32, 0.55, 4e4))
    ]
    best = fit_law(curves, metric="avg@4", replicates=100).joint.rollouts
    assert best is not None
    assert best.direction == "falls" and not best.rises and not best.saturates
    assert (best.floor_bound, best.ceiling_bound) == (">=", "<=")
    assert best.floor == pytest.approx(32, rel=0.3) and best.ceiling == pytest.approx(8, rel=0.3)


def test_steps_of_different_n_are_not_compared() -> None:
    steps = np.arange(1.0, 41.0)
    curves = [Curve(f"{n}", steps, hill(steps * n, 0.3, 0.6, 100.0, 1.5), None, n) for n in (8, 32)]
    law = fit_law(curves, metric="avg@4", unit="steps", replicates=100)
    assert law.slices == ()
    assert law.surface is None
    assert law.joint.rollouts is None
    assert any("--problems-per-batch" in note for note in law.notes)


def test_recipes_are_not_seeds_of_each_other() -> None:
    compute = np.geomspace(1e4, 1e6, 30)
    slow, fast = (
        Curve(name, compute, hill(compute, 0.3, ceiling, 5e4, 1.5), 32, 8, 0, recipe)
        for name, ceiling, recipe in (("slow", 0.4, "lr 1e-6"), ("fast", 0.7, "lr 1e-5"))
    )
    assert len(fit_law([slow, fast], metric="avg@4", replicates=60).settings) == 2
    pooled = fit_law(
        [slow, Curve("again", compute, slow.values_C + 0.01, 32, 8, 1, "lr 1e-6")], metric="a", replicates=60
    )
    assert len(pooled.settings) == 1


def test_a_run_that_only_falls_is_said_to() -> None:
    compute = np.linspace(1e4, 1e6, 30)
    curve = noisy("down", compute, 0.5 - 0.2 * compute / 1e6, noise=0.003, seed=0)
    (run,) = fit_law([curve], metric="reward", replicates=60).runs
    assert run.collapse_after is not None
    assert run.fit.ceiling == pytest.approx(0.49, abs=0.02)


def test_a_run_that_collapses_before_it_has_a_curve_is_left_out_by_name() -> None:
    compute = np.linspace(1e3, 1e5, 20)
    steady = noisy("steady", compute, hill(compute, 0.3, 0.5, 1e4, 2.0), noise=0.003, seed=0)
    lost = Curve("lost", compute, np.array([0.5, 0.505, *[0.01] * 18]), None, None)
    law = fit_law([steady, lost], metric="reward", replicates=60)
    assert [run.curve.name for run in law.runs] == ["steady"]
    assert any("'lost' collapsed within its first 2 evaluations" in note for note in law.notes)
    with pytest.raises(InputError, match="'lost', column 'reward': it collapses within its first 2 evaluations"):
        fit_law([lost], metric="reward", replicates=60)


def test_runs_that_fell_are_named_in_one_note() -> None:
    compute = np.linspace(1e3, 1e5, 20)
    collapsed = [noisy(f"r{i}", compute, hill(compute, 0.3, 0.5, 1e4, 2.0), noise=0.003, seed=i) for i in range(5)]
    for curve in collapsed:
        curve.values_C[-4:] = 0.05
    notes = [note for note in fit_law(collapsed, metric="reward", replicates=60).notes if "collapse" in note]
    where = f"after {compute[15] / 1e3:.3g}k rollouts"
    assert notes == [f"runs that collapse are fitted up to there: 'r0' {where}, 'r1' {where}, 'r2' {where} and 2 more"]


def test_sigmoid_recovers_the_papers_parameters() -> None:
    x = np.geomspace(1e4, 1e8, 160)
    log2n = 6.09 / (1 + np.exp(-4.75 * (np.log10(x) - 5.84))) + 2.73  # figure 7, easy
    still = Movement(rises=0.0, falls=1.0, lead=0.1, lead_interval=(0.05, 0.15))
    (best,) = fit_optima(
        [Reading(x, 2**log2n, np.tile(2**log2n, (60, 1)), tried=np.array([4.0, 4096.0]), movement=still)]
    )
    assert (best.L, best.k, best.log10_C0, best.b) == pytest.approx((6.09, 4.75, 5.84, 2.73), rel=2e-3)
    assert best.ceiling == pytest.approx(452, rel=0.01)


def grid(noise: float = 0.004, seeds: int = 1) -> list[Curve]:
    """A sweep with a known surface: the ceiling rises with log2 n, hardly with Bp; larger n learns later."""
    rng = np.random.default_rng(0)
    out = []
    for bp in (32, 64, 128):
        for n in (8, 16, 32, 64, 128):
            for seed in range(seeds):
                compute = np.geomspace(bp * n * 4, 4e6, 30)
                values = surface(compute, n, bp) + noise * rng.standard_normal(30)
                out.append(Curve(f"{bp}x{n}s{seed}", compute, values, bp, n, seed))
    return out


def surface(compute, n, bp):
    u, v = np.log2(n) - 3, np.log2(bp) - 5
    return hill(compute, 0.4, 0.55 + 0.03 * u - 0.002 * u**2 + 0.003 * v, 6e4 * 1.35**u, 1.2)


def test_joint_law_predicts_a_setting_that_was_never_run() -> None:
    curves = [c for c in grid() if c.rollouts_per_problem != 32]
    law = fit_law(curves, metric="avg@4", replicates=200)
    assert law.surface is not None
    compute = np.array([3e5, 1e6, 4e6])
    values_CB = law.settings[0].posterior.between(64, 32, compute)
    np.testing.assert_allclose(values_CB.mean(axis=1), surface(compute, 32, 64), atol=0.006)
    low, high = np.percentile(values_CB, [10, 90], axis=1)
    assert ((low < surface(compute, 32, 64)) & (surface(compute, 32, 64) < high)).all()
    assert ((high - low) < 0.03).all()
    assert {left.rollouts_per_problem for left in law.surface.left_out} == {8, 16, 64, 128}
    assert all(left.rmse < 0.012 for left in law.surface.left_out if not left.edge)


def test_the_three_settings_and_the_sensitivity() -> None:
    law = fit_law(grid(seeds=2), metric="avg@4", replicates=150)
    assert [t.value for t in law.by_problems] == [32, 64, 128]
    at_1024 = next(t for t in law.by_batch if t.value == 1024)
    assert at_1024.rollouts is not None and at_1024.problems is not None
    product = at_1024.rollouts.estimate_C * at_1024.problems.estimate_C
    np.testing.assert_allclose(product, 1024)  # Bp*(M) = B / n*(M)
    to_n = next(s for s in law.slices if s.varied == "rollouts_per_problem" and s.fixed == 32)
    to_bp = next(s for s in law.slices if s.varied == "problems_per_batch" and s.fixed == 8)
    assert to_n.range == pytest.approx(0.03 * 4 - 0.002 * 16, abs=0.02)
    assert to_n.range_interval[0] > to_bp.range_interval[1]
    assert to_n.range_interval[0] <= to_n.range <= to_n.range_interval[1]


def test_runs_of_unknown_n_are_not_seeds_of_each_other() -> None:
    compute = np.linspace(1, 50, 30)
    curves = [Curve(f"{a}", compute, hill(compute, 0.3, a, 8, 1.5)) for a in (0.5, 0.6)]
    law = fit_law(curves, metric="reward", replicates=100)
    assert len(law.settings) == 2
    assert law.joint.rollouts is None
    assert [run.fit.ceiling for run in law.runs] == pytest.approx([0.5, 0.6], abs=0.01)


def test_records_are_the_papers_choice_and_lean_upwards() -> None:
    compute = np.linspace(1, 60, 60)
    curves = [noisy(f"{i}", compute, hill(compute, 0.3, 0.6, 8, 2), noise=0.02, seed=i) for i in range(12)]
    everything = fit_law(curves, metric="reward", replicates=60)
    records = fit_law(curves, metric="reward", replicates=60, points="records")
    bias = np.mean([r.fit.ceiling for r in records.runs]) - np.mean([r.fit.ceiling for r in everything.runs])
    assert bias > 0.01  # the reason why all points are the default
    assert all(r.records == len(r.fit.curves[0].compute_C) for r in records.runs)


def test_law_file_round_trip(tmp_path) -> None:
    law = fit_law(grid(), metric="avg@4", replicates=60)
    write_law(law, tmp_path / "law.json")
    stored = read_law(tmp_path / "law.json")
    assert stored.summary["metric"] == "avg@4" and stored.summary["replicates"] == 60
    compute = np.geomspace(1e4, 1e7, 9)
    for mine, theirs in zip(law.settings, stored.settings, strict=True):
        assert mine.setting == theirs.setting
        np.testing.assert_allclose(theirs.at(compute), mine.at(compute), rtol=1e-5)
        np.testing.assert_allclose(theirs.draws_at(compute), mine.draws_at(compute), rtol=1e-4)
    mine_CB, theirs_CB = (each.settings[0].posterior.between(64, 24, compute) for each in (law, stored))
    np.testing.assert_allclose(theirs_CB, mine_CB, rtol=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "isocompute-law", "version": 99}',
        '{"format": "isocompute-law", "version": 1, "settings": [{}]}',
    ],
)
def test_damaged_law_files_are_refused(tmp_path, text: str) -> None:
    (tmp_path / "law.json").write_text(text)
    with pytest.raises(InputError, match=r"law\.json"):
        read_law(tmp_path / "law.json")


def test_same_seed_same_law() -> None:
    first, second = (fit_law(figure_6(FIGURE_6_EASY, noise=0.01), metric="a", replicates=80).to_json() for _ in "ab")
    assert first == second


def test_constant_and_short_runs_are_named() -> None:
    compute = np.linspace(1, 9, 9)
    with pytest.raises(InputError, match=r"run 'flat'.*constant"):
        fit_law([Curve("flat", compute, np.full(9, 0.5))], metric="reward")
    steps = Curve("short", compute, np.repeat([0.1, 0.2, 0.3], 3))
    with pytest.raises(InputError, match=r"run 'short'.*3 record-breaking points.*--bin"):
        fit_law([steps], metric="reward", points="records")


@pytest.mark.parametrize(("lead", "least", "most"), [(0.0, 0, 2), (0.06, 9, 10)])
def test_n_is_said_to_rise_where_larger_n_lead_not_where_all_are_equal(lead: float, least: int, most: int) -> None:
    """Five n of three seeds, of which the smallest leads at first; `lead` is that of the largest at the end."""
    rng, compute_C = np.random.default_rng(5), np.geomspace(1e4, 1e6, 25)
    rises = 0
    for _ in range(10):
        curves = []
        for i, n in enumerate((4, 8, 16, 32, 64)):
            for seed in range(3):
                rise = 0.3 + lead * i / 4 + 0.007 * rng.standard_normal()
                values_C = 0.3 + rise * (1 - np.exp(-compute_C / (2e4 * (n / 4) ** 0.6)))
                values_C = values_C + 0.005 * rng.standard_normal(25)
                curves.append(Curve(f"{n}-{seed}", compute_C, values_C, 32, n, seed))
        best = fit_law(curves, metric="avg@4", replicates=100).joint.rollouts
        assert best is not None
        rises += best.rises
    assert least <= rises <= most
