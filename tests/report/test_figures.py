"""Figures from studies whose answers are known, and what is said where the data do not support one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scipy.optimize import brentq

from isocompute.core.errors import InputError
from isocompute.data import Run, RunSet, RunSettings
from isocompute.law.frontier import Switch
from isocompute.report.charts import style as marks
from isocompute.report.charts.reward import of_tradeoff, reward_panel, shades_of
from isocompute.report.evidence import Evidence
from isocompute.report.figures import FIGURES, Figure, draw
from tests.law.made_up import FIGURE_6_EASY, figure_6
from tests.report.made_up import BUDGET, CEILINGS, drawn, evidence, missing, run, study, truth, write


def crossing(a: int, b: int, bp: int = 32) -> float:
    """Where the true curve of n = b overtakes that of n = a."""
    return math.exp(
        brentq(lambda x: truth(math.exp(x), bp, b) - truth(math.exp(x), bp, a), math.log(3e3), math.log(BUDGET))
    )


def test_reward_and_its_switches() -> None:
    (panel,) = drawn("reward", study()).data["panels"]
    assert [fit["rollouts_per_problem"] for fit in panel["fits"]] == [8, 32, 128]
    for fit, ceiling in zip(panel["fits"], CEILINGS.values(), strict=True):
        assert fit["ceiling"] == pytest.approx(ceiling, abs=0.015)
    crossed = [s["compute"] for s in panel["switches"] if s["crosses"]]
    assert crossed == pytest.approx([crossing(8, 32), crossing(32, 128)], rel=0.12)


def test_the_papers_own_switches() -> None:
    """Figure 6 of the IsoCompute paper: 8 → 32 at .25-.27M rollouts, 32 → 128 at .81-.85M, 128 → 256 at 1.27M."""
    runs = [
        Run(
            curve.name,
            RunSettings(problems_per_batch=32, rollouts_per_problem=curve.rollouts_per_problem),
            pl.DataFrame({"rollouts": curve.compute_C, "avg@4": curve.values_C}),
        )
        for curve in figure_6(FIGURE_6_EASY)
    ]
    (panel,) = drawn("reward", runs).data["panels"]
    switches = [s["compute"] / 1e6 for s in panel["switches"]]
    assert 0.24 < switches[0] < 0.28
    assert 0.79 < switches[1] < 0.89  # n = 128 was first evaluated at .97M
    assert switches[2] == pytest.approx(1.27, rel=0.03)
    best = drawn("optimum", runs).data["panels"][0]
    assert (best["direction"], best["ceiling_bound"], best["estimate"][-1]) == ("rises", ">=", 512)


def test_one_panel_a_condition() -> None:
    figure = drawn("reward", [*study(problems="easy"), *study(problems="hard")])
    assert [panel["title"] for panel in figure.data["panels"]] == ["easy · Bp = 32", "hard · Bp = 32"]
    assert len(figure.panels) == 2
    assert figure.caption.count("n = ") + figure.caption.count("32 × ") >= 2


def test_optimum_moves_where_the_truth_does() -> None:
    (best,) = drawn("optimum", study()).data["panels"]
    assert best["direction"] == "rises"
    at = dict(zip(best["x"], best["estimate"], strict=True))
    for compute, n in at.items():
        values = {m: truth(compute, 32, m) for m in CEILINGS}
        assert values[n] > max(values.values()) - 0.004
    assert all(low <= n <= high for n, (low, high) in zip(best["estimate"], best["interval"], strict=True))


def test_joint_figures_and_small_multiples() -> None:
    known = evidence(study(bps=(32, 64, 128)))
    (best,) = drawn("joint-optimum", known).data["panels"]
    assert best["estimate"][-1] == 128
    (panel,) = drawn("joint-frontier", known).data["panels"]
    assert len(panel["fits"]) == 9
    assert panel["switches"][-1]["to"].endswith("× 128")
    assert [p["title"] for p in drawn("fixed-problems", known).data["panels"]] == ["Bp = 32", "Bp = 64", "Bp = 128"]
    batches = drawn("fixed-batch", known).data["panels"]
    for p in batches:
        assert {f["problems_per_batch"] * f["rollouts_per_problem"] for f in p["fits"]} == {int(p["title"].split()[-1])}


def test_batch_tradeoff_goes_from_problems_to_rollouts() -> None:
    runs = [run(bp, n) for bp, n in ((512, 8), (128, 32), (32, 128))]  # B = 4096
    (panel,) = drawn("batch-tradeoff", runs).data["panels"]
    n, bp = panel["rollouts"]["estimate"], panel["problems"]["estimate"]
    assert n[0] < n[-1] == 128
    assert bp[0] > bp[-1] == 32
    assert all(a * b == 4096 for a, b in zip(n, bp, strict=True))


def test_sensitivity_is_the_spread_of_the_truth() -> None:
    by = {panel["varied"]: panel for panel in drawn("sensitivity", study(bps=(32, 128))).data["panels"]}
    compute = by["rollouts_per_problem"]["compute"]
    true = [truth(compute, 32, n) for n in CEILINGS]
    assert by["rollouts_per_problem"]["values"] == pytest.approx(true, abs=0.01)
    assert by["rollouts_per_problem"]["range"] == pytest.approx(max(true) - min(true), abs=0.015)
    assert by["problems_per_batch"]["range"] < 0.02


def test_sensitivity_of_end_points() -> None:
    rows = [(4, 0.50), (4, 0.54), (16, 0.60), (16, 0.66), (16, 0.63)]
    runs = [
        Run(f"r{i}", RunSettings(rollouts_per_problem=n), pl.DataFrame({"final_val_accuracy": [v]}))
        for i, (n, v) in enumerate(rows)
    ]
    known = evidence(runs)
    assert known.unit is None
    (panel,) = drawn("sensitivity", known).data["panels"]
    assert [(row["setting"], row["runs"]) for row in panel["rows"]] == [("4", 2), ("16", 3)]
    assert [row["value"] for row in panel["rows"]] == pytest.approx([0.52, 0.63])
    assert panel["rows"][1]["high"] == pytest.approx(0.63 + 2 * 0.03 / math.sqrt(3))
    assert "learning curves" in missing("reward", known)


def test_records_against_the_definition() -> None:
    figure = drawn("records", study(ns=(8,)))
    marked = [(p["compute"], p["kind"]) for p in figure.data["panels"][0]["points"]]
    best = -math.inf
    for point, (compute, kind) in zip(study(ns=(8,))[0].points.to_dicts(), marked, strict=True):
        bin_ = math.floor(round(point["avg@4"] / 0.005, 6))
        assert compute == point["rollouts"]
        assert (kind == "record") == (bin_ > best)
        best = max(best, bin_)


def test_best_n_for_coverage_and_sharpening() -> None:
    metrics = {
        "avg@4": truth,
        "best@4": lambda c, bp, n: truth(c, bp, n) + (0.2 if n == 32 else 0.0),
        "worst@4": lambda c, bp, n: truth(c, bp, n) - (0.2 if n == 128 else 0.0),
    }
    known = evidence(study(metrics=metrics))
    rows = {row["metric"]: row for row in drawn("metrics", known).data["rows"]}
    assert rows["best@4"]["n"] == 32
    assert rows["worst@4"]["n"] == 32
    assert rows["best@4"]["low"] <= 32 <= rows["best@4"]["high"]
    assert "best@k" in missing("metrics", study())


def test_tokens_and_rollouts_agree() -> None:
    tokens, rollouts = drawn("tokens", study()).data["panels"]
    assert (tokens["unit"], rollouts["unit"]) == ("tokens", "rollouts")
    assert 10 ** (tokens["log10_x0"] - rollouts["log10_x0"]) == pytest.approx(500, rel=0.02)


def test_other_problems() -> None:
    metrics = {"avg@4": truth, "aime/avg@4": lambda c, bp, n: 0.5 * truth(c, bp, n)}
    (panel,) = drawn("out-of-distribution", study(metrics=metrics)).data["panels"]
    assert panel["metric"] == "aime/avg@4"
    assert panel["fits"][-1]["ceiling"] == pytest.approx(0.35, abs=0.02)
    assert "another problem set" in missing("out-of-distribution", study())


@pytest.mark.parametrize(
    ("name", "one", "other", "titles"),
    [
        ("models", {"model": "org/A-1B"}, {"model": "org/B-7B"}, ["A-1B", "B-7B"]),
        ("set-size", {"world": {"size": 500}}, {"world": {"size": 6000}}, ["D = 500", "D = 6000"]),
        (
            "algorithms",
            {"recipe": {"loss": "clip", "advantage": "group_std"}},
            {"recipe": {"loss": "cispo", "advantage": "batch_std"}},
            ["cispo · CISPO", "clip · GRPO"],
        ),
    ],
)
def test_contrasts(name: str, one: dict[str, Any], other: dict[str, Any], titles: list[str]) -> None:
    runs = [run(32, n, name=f"{i}-{n}", **told) for i, told in enumerate((one, other)) for n in CEILINGS]
    assert sorted(panel["title"] for panel in drawn(name, runs).data["panels"]) == titles
    assert "two or more" in missing(name, runs[: len(CEILINGS)])


def test_contrasts_compare_like_with_like() -> None:
    """A set of another size and another recipe says nothing about the size."""
    small = study(problems="easy", world={"size": 500})
    large = study(problems="hard", world={"size": 6000})
    assert "sizes of the training set" in missing("set-size", [*small, *large])
    small = study(problems="few", problem_set={"source": "chain:easy", "size": 500})
    large = study(problems="many", problem_set={"source": "chain:easy", "size": 6000})
    assert len(drawn("set-size", [*small, *large]).panels) == 2


def test_mixtures_are_a_grid() -> None:
    def on(shift: float) -> Any:
        return lambda c, bp, n: truth(c, bp, n) - shift

    easy = study(problems="easy", metrics={"avg@4": on(0), "hard/avg@4": on(0.2)})
    hard = study(problems="hard", metrics={"avg@4": on(0.1), "easy/avg@4": on(0.05)})
    panels = {p["title"]: p for p in drawn("mixtures", [*easy, *hard]).data["panels"]}
    assert len(panels) == 4
    shown = panels["trained on hard, evaluated on hard"]
    assert (shown["metric"], [fit["rollouts_per_problem"] for fit in shown["fits"]]) == ("avg@4", [8, 128])
    assert panels["trained on hard, evaluated on easy"]["metric"] == "easy/avg@4"
    assert "training mixtures" in missing("mixtures", easy)


def test_extremely_hard() -> None:
    metrics = {"avg@4": truth, "best@4": truth, "worst@4": truth}
    runs = study(problems="extremely_hard", metrics=metrics)
    assert [p["metric"] for p in drawn("extremely-hard", runs).data["panels"]] == ["best@4", "worst@4"]
    assert "never solves" in missing("extremely-hard", study(problems="hard", metrics=metrics))


def test_baseline_variance() -> None:
    plain = [run(32, n, name=f"plain-{n}", recipe={"loss": "clip"}) for n in (8, 32)]
    decoupled = run(32, 8, name="decoupled", recipe={"loss": "clip", "baseline_rollouts": 32})
    elsewhere = run(32, 8, name="elsewhere", problems="hard", recipe={"loss": "clip"})
    data = drawn("baseline", [*plain, decoupled, elsewhere]).data
    assert set(data["reached"]) == {"8/32", "8/8", "32/32"}
    reached, (low, high) = data["reached"]["32/32"]
    assert low <= reached <= high
    assert reached == pytest.approx(truth(data["at"], 32, 32), abs=0.01)
    assert "decoupled" in missing("baseline", plain)


def test_extrapolation_from_the_first_half() -> None:
    (found,) = drawn("extrapolation", [run(32, 8, noise=0.0)]).data["runs"]
    end = found["held_out"]["compute"][-1]
    assert max(found["fitted"]["compute"]) <= end / 2 < min(found["held_out"]["compute"])
    assert found["expected"] == pytest.approx(truth(end, 32, 8), abs=0.002)
    assert found["expected_interval"][0] <= found["expected"] <= found["expected_interval"][1]


def recipe_runs() -> list[Run]:
    slow = {"avg@4": lambda c, bp, n: truth(c, bp, n, efficiency=0.9)}
    low = {"avg@4": lambda c, bp, n: truth(c, bp, n) - 0.1}
    common = {"loss": "clip", "kl_coef": 0.0, "clip_high": 0.2}
    return [
        run(32, 32, name="reference", recipe=common),
        run(32, 32, name="kl", recipe=common | {"kl_coef": 0.01}, metrics=low),
        run(32, 32, name="clip", recipe=common | {"clip_high": 0.28}, metrics=slow),
    ]


def test_recipes_by_their_ceiling() -> None:
    (panel,) = drawn("recipes", recipe_runs()).data["panels"]
    ceilings = {curve["name"]: curve["ceiling"] for curve in panel["curves"]}
    assert ceilings["clip_high 0.2 · kl_coef 0"] == pytest.approx(0.62, abs=0.015)
    assert ceilings["clip_high 0.2 · kl_coef 0.01"] == pytest.approx(0.52, abs=0.015)
    assert "two or more recipes" in missing("recipes", recipe_runs()[:1])


def test_leave_one_out_slopes() -> None:
    data = drawn("leave-one-out", recipe_runs()).data
    assert data["reference"] == "clip_high 0.2 · kl_coef 0 (reference)"
    changes = {change["entry"]: change for change in data["changes"]}
    assert set(changes) == {"kl_coef = 0.01", "clip_high = 0.28"}
    assert changes["clip_high = 0.28"]["value"] == pytest.approx(0.9 / 1.5, rel=0.15)
    low, high = changes["kl_coef = 0.01"]["ceiling_interval"]
    assert low <= -0.1 <= high
    assert "one field" in missing("leave-one-out", recipe_runs()[1:])


def test_pass_rates_from_counts(tmp_path: Path) -> None:
    runs = [run(4, n, name=f"n{n}", metrics={"avg@4": lambda c, _bp, _n: truth(c, 32, 8)}) for n in (8, 32)]
    write(tmp_path, runs)
    counts = {"n8": [0, 0, 1, 4], "n32": [0, 2, 4, 4]}
    for name, correct in counts.items():
        last = runs[0 if name == "n8" else 1].points["step"].to_list()
        lines = [{"step": step, "set": "validation", "samples": 4, "correct": correct} for step in last]
        torn = b'{"step": 9'
        data = "".join(json.dumps(line) + "\n" for line in lines).encode() + torn
        (tmp_path / name / "pass_rates.jsonl").write_bytes(data)
    known = Evidence.of(tmp_path, replicates=60)
    small, large = drawn("pass-rates", known).data["panels"][0]["histograms"]
    assert (small["zero"], large["zero"]) == (0.5, 0.25)
    assert (small["mean"], large["mean"]) == (5 / 16, 10 / 16)
    assert small["shares"] == [0.5, 0.25, 0, 0, 0.25]  # 4 samples, 5 rates
    over = drawn("pass-rate-dynamics", known).data["panels"]
    assert [len(panel["histograms"]) for panel in over] == [r.points.height for r in runs]
    assert "pass rates" in missing("pass-rates", runs)


def test_pass_rates_of_the_simulator() -> None:
    runs = []
    for n in (8, 64):
        rows = [
            {"step": s, "rollouts": 8 * n * s, "avg@4": 0.3 + 0.01 * s, "train/pass_rates": [s] + [0] * 18 + [10 - s]}
            for s in range(1, 9)
        ]
        runs.append(Run(f"n{n}", RunSettings(problems_per_batch=8, rollouts_per_problem=n), pl.DataFrame(rows)))
    small, large = drawn("pass-rates", runs).data["panels"][0]["histograms"]
    assert (small["step"], large["step"]) == (8, 1)  # 512 rollouts, the most that both have
    assert (small["zero"], large["zero"]) == pytest.approx((0.8, 0.1))


ALONE = {"records", "extrapolation"}
"""Figures that one run supports."""


@pytest.mark.parametrize("name", FIGURES)
def test_one_run(name: str) -> None:
    found = draw(name, evidence([run(32, 8)]))
    if name in ALONE:
        assert isinstance(found, Figure)
        assert found.caption.endswith(".")
        json.dumps(found.to_json(), allow_nan=False)
    else:
        assert not isinstance(found, Figure)
        assert len(found.needs) > 20


def test_runs_that_lack_the_metric_are_left_out() -> None:
    runs = study()
    short = Run("short", runs[0].settings, runs[0].points.head(2))
    other = Run("other", runs[0].settings, runs[0].points.rename({"avg@4": "loss"}))
    known = evidence([*runs, short, other])
    assert known.metric == "avg@4"
    assert set(known.left_out) == {"short", "other"}
    assert len(drawn("reward", known).data["panels"][0]["runs"]) == 3


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="there is no figure 'nope'; figures are reward"):
        draw("nope", evidence(study()))
    with pytest.raises(InputError, match="no run has a metric 'nope'"):
        Evidence.of(RunSet(tuple(study())), metric="nope")


@pytest.mark.parametrize("ending", ["svg", "png", "pdf", "html"])
def test_saved_in_every_format(ending: str, tmp_path: Path) -> None:
    path = drawn("sensitivity", study(ns=(8, 32))).save(tmp_path / f"figure.{ending}")
    start = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!DOCTYPE html>"}[ending]
    assert path.read_bytes().lstrip().startswith(start)


def test_units_that_runs_do_not_share() -> None:
    runs = study()
    hours = runs[0].points.select(pl.col("rollouts").alias("gpu_hours"), "avg@4")
    known = evidence([*runs, Run("hours", RunSettings(), hours)])
    assert known.unit == "rollouts"
    assert set(known.left_out) == {"hours"}
    assert known.notes == ["1 of 4 runs give no curve; see Methods."]


@pytest.mark.parametrize(("times", "names"), [((8.0, 40.0), 2), ((20.0, 70.0), 2), ((20.0, 90.0), 3)])
def test_names_of_leaders_do_not_meet(times: tuple[float, float], names: int) -> None:
    """The first stands right of its dot, the others left of theirs: between those two there must be room for both."""
    ((_, law),) = evidence(study(bps=(32, 64))).laws()
    assert law.joint is not None
    found = of_tradeoff("all runs", law, law.joint)
    start = float(found.frontier.compute_C[0])
    switches = tuple(Switch(start * far, i, i + 1, 0.4, crosses=True) for i, far in enumerate(times))
    end = replace(found.frontier, switches=switches)
    spec = reward_panel(replace(found, frontier=end), shades=shades_of(found.fits), leaders=True).to_dict()
    texts = [layer["data"]["name"] for layer in spec["layer"] if layer["mark"]["type"] == "text"]
    assert sum(len(spec["datasets"][name]) for name in texts) == names


def test_a_long_title_is_cut_and_a_long_subtitle_goes_on_below() -> None:
    panel = marks.panel(marks.chart([{"x": 1}]).mark_point(), title="a" * 200, subtitle="some words " * 20)
    heading = panel.to_dict()["title"]
    assert heading["limit"] <= 400
    assert len(heading["subtitle"]) > 1 and max(map(len, heading["subtitle"])) <= 66
    name = "qwen-7b-" * 12 + "seed42"
    named = marks.panel(marks.chart([{"x": 1}]).mark_point(), title="", subtitle=f"{name} fell").to_dict()["title"]
    assert " ".join(named["subtitle"]) == f"{name} fell"
