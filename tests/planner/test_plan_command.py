"""`isocompute plan` from its arguments to what it prints and writes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isocompute
from isocompute.core.allocation import Allocation
from isocompute.core.curve import Curve
from isocompute.core.recipe import Recipe
from isocompute.law.law import fit_law
from isocompute.law.store import write_law
from isocompute.sweep import cells, read_spec
from isocompute.sweep.command import CommandEngine
from tests.commands import Call, fails
from tests.conftest import rising, write_points

KEYS = (
    "problems_per_batch",
    "rollouts_per_problem",
    "update_steps",
    "batch_size",
    "compute",
    "learning_rate",
    "warmup_steps",
    "kl_coef",
    "entropy_coef",
    "temperature",
    "expected",
    "probability_best",
    "answer",
    "ties",
    "alternatives",
    "warnings",
    "cost",
    "law",
)

OF_THE_PLAN = ("answer", "ties", "alternatives", "warnings", "cost", "law")
"""Keys that alternatives lack."""
RATE = ("--rollouts-per-second", "8", "--gpus", "8")


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "plan")


def made_up_law(path: Path, *, budgets: float = 2e6, replicates: int = 60) -> Path:
    """Bp 32 and 64, four n; larger n reach higher and learn later, so that n* rises with compute."""
    rng = np.random.default_rng(0)
    curves = []
    for bp in (32, 64):
        for n in (8, 16, 32, 64):
            compute_C = np.geomspace(2e4, budgets, 24)
            ceiling = 0.5 + 0.03 * np.log2(n / 8)
            value_C = 0.3 + (ceiling - 0.3) / (1 + (6e4 * (n / 8) ** 0.7 / compute_C) ** 1.2)
            noise_C = 0.003 * rng.standard_normal(24)
            curves.append(Curve(f"{bp}x{n}", compute_C, value_C + noise_C, bp, n, seed=0))
    write_law(fit_law(curves, metric="avg@4", replicates=replicates), path)
    return path


@pytest.fixture(scope="module")
def own_law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_law(tmp_path_factory.mktemp("law") / "law.json")


@pytest.mark.parametrize(
    ("law", "budget", "n"),
    [
        ("isocompute/bp32-easy", "0.15e6", 8),
        ("isocompute/bp32-easy", "0.5e6", 32),
        ("isocompute/bp32-easy", "1e6", 128),
        ("isocompute/bp32-easy", "2e6", 256),
        ("isocompute/bp32-easy", "4e6", 512),
        ("isocompute/bp32-hard", "2e6", 128),
        ("isocompute/joint-easy", "2e6", 256),
        ("isocompute/joint-hard", "2e6", 128),
    ],
)
def test_published_laws_give_the_papers_frontier(call: Call, law: str, budget: str, n: int) -> None:
    found = call("--budget", budget, "--law", law, "--json").json
    assert abs(np.log2(found["rollouts_per_problem"] / n)) <= 1
    assert found["problems_per_batch"] == 32
    assert found["compute"] <= float(budget)


def test_json_has_the_promised_keys(call: Call) -> None:
    found = call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--json").json
    assert set(KEYS) <= set(found)
    assert set(found["expected"]) >= {"metric", "value", "interval"}
    assert set(found["law"]) >= {"name", "range"}
    low, high = found["expected"]["interval"]
    assert low <= found["expected"]["value"] <= high
    assert found["batch_size"] == found["problems_per_batch"] * found["rollouts_per_problem"]
    assert found["compute"] == found["batch_size"] * found["update_steps"]
    for other in found["alternatives"]:
        assert {key for key in KEYS if key not in OF_THE_PLAN} <= set(other)
        assert other["regret"] >= 0
    everything = [found, *found["alternatives"]]
    assert sum(o["probability_best"] for o in everything) == pytest.approx(1.0)
    assert not any(o["cheapest"] for o in everything), "no throughput is known"
    assert [[o["problems_per_batch"], o["rollouts_per_problem"]] for o in everything if o["within_one_error"]] == found[
        "ties"
    ]
    assert all(o["within_one_error"] == (o["regret"] <= o["tolerance"]) for o in everything)
    assert Recipe(**found["recipe"]).kl_coef == found["kl_coef"] > 0
    assert all(line["reason"] and line["source"] for line in found["recipe_lines"])
    assert {w["code"] for w in found["warnings"]} == {"foreign_law"}


def test_the_learning_rate_follows_the_square_root(call: Call) -> None:
    found = call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--lr-reference", "4e-6@512", "--json").json
    assert found["learning_rate"] == pytest.approx(4e-6 * (found["batch_size"] / 512) ** 0.5)
    hard = call("--budget", "2e6", "--law", "isocompute/bp32-hard", "--json").json
    assert hard["kl_coef"] == hard["entropy_coef"] == 0
    assert hard["temperature"] == pytest.approx(0.6)


def test_the_terminal_says_the_answer_first(call: Call) -> None:
    shown = call("--budget", "2e6", "--law", "isocompute/bp32-easy").out
    first = shown.splitlines()
    assert re.match(r" Use  32 problems × 256 rollouts × 244 updates   \(1,998,848 rollouts\)", first[0])
    assert re.fullmatch(r" Expect avg@4 \.63\d \(\.\d+–\.\d+, 80%\)", first[1])
    assert first[2] == " " + isocompute.plan(budget="2e6", law="isocompute/bp32-easy").answer
    assert re.fullmatch(r" \d of 5 allocations tie within \.\d+: n = .*; 32 × 256 is the default, .*", first[2])
    assert first[3].startswith(" Learning rate 2.8e-06 = 1e-06 × √(8192/1024), 10 warm-up steps · KL and entropy on")
    assert "Warning" in shown and "intervals: published without errors" in shown


def test_the_terminal_says_how_often_the_set_is_seen(call: Call) -> None:
    args = ("--budget", "2e6", "--law", "isocompute/bp32-easy")
    assert "\n Passes over 6,000 problems: 1.3 (333 rollouts of each)\n" in call(*args, "--problems", "6000").out
    few = call(*args, "--problems", "400").out
    assert "\n Passes over 400 problems: 19.5 (5k rollouts of each)\n" in few
    assert "expect overfitting" in few and "250 of each of 400" in few.replace("\n", " ")
    assert "Passes" not in call(*args).out


def test_the_terminal_says_the_mix_and_how_many_groups_teach_nothing(call: Call, tmp_path: Path) -> None:
    """Bands add up to all problems: those never solved are among the hard ones."""
    args = ("--law", "isocompute/bp32-hard", "--n", "8", "--budget", "1e6", "--pass-rates", str(tmp_path / "rates.txt"))
    (tmp_path / "rates.txt").write_text("0\n0.05\n0.2\n0.4\n0.5\n0.5\n0.55\n0.6\n0.7\n0.8\n")
    shown = call(*args).out
    assert (
        "\n your 10 problems: mean pass rate .430; 20% hard (never solved: 10% of the set), 10% between, "
        "50% easy, 20% very easy\n"
    ) in shown
    assert "\n zero-variance groups at n = 8: 21% at the start\n" in shown
    (tmp_path / "rates.txt").write_text("0\n0\n0.0625\n" * 100)
    few = call(*args).out
    result = re.search(r"at n = 8: (\d+)% at the start, (\d+)% by the rates behind these samples\n", few)
    assert result and int(result[2]) < int(result[1])
    (tmp_path / "rates.txt").write_text("0.411\n")
    assert "your 1 problem: mean pass rate .411; 0% hard, 0% between, 100% easy" in call(*args).out


def test_one_is_not_told_as_several(call: Call, own_law: Path) -> None:
    one = ("--law", "isocompute/bp32-easy", "--n", "512", "--min-updates", "1", "--extrapolate")
    shown = call(*one, "--budget", "16384", "--problems", "16384").out
    assert " Use  32 problems × 512 rollouts × 1 update   (16,384 rollouts)" in shown
    assert "(1 rollout of each)" in shown
    assert ", 1 warm-up step ·" in call(*one, "--budget", "65536").out
    own = isocompute.plan(budget=1e5, law=own_law, problems_per_batch=32, rollouts_per_problem=8)
    single = replace(own, chosen=replace(own.chosen, allocation=Allocation(1, 1, 1)))
    assert repr(single).startswith("Plan(1 problem × 1 rollout × 1 update = ")


def test_laws_are_listed_with_source_and_range(call: Call) -> None:
    laws = {law["name"]: law for law in call("--laws", "--json").json["laws"]}
    assert {
        f"isocompute/{n}" for n in ("bp32-easy", "bp32-hard", "joint-easy", "joint-hard", "bp32-easy-tokens")
    } <= set(laws)
    assert {"scalerl/8b", "scalerl/scout", "scalerl/32k"} <= set(laws)
    for law in laws.values():
        assert law["range"][0] < law["range"][1]
        assert "arXiv" in law["source"] and law["uncertainty"]
    assert "scalerl/8b" in call("--laws").out


@pytest.mark.parametrize(
    ("args", "unit"),
    [
        (("--budget", "4.4e9tok", "--law", "isocompute/bp32-easy-tokens"), "tokens"),
        (("--budget", "4e9tok", "--law", "isocompute/bp32-easy", "--response-tokens", "2000"), "tokens"),
        (
            ("--budget", "500h", "--law", "isocompute/bp32-easy", *RATE),
            "gpu_hours",
        ),
        (
            ("--budget", "$2000", "--law", "isocompute/bp32-easy", *RATE, "--price-per-gpu-hour", "4"),
            "money",
        ),
        (("--budget", "5000h", "--law", "scalerl/generations"), "gpu_hours"),
    ],
)
def test_budgets_convert_and_are_kept_to(call: Call, args: tuple[str, ...], unit: str) -> None:
    found = call(*args, "--json").json
    assert found["budget"]["unit"] == unit
    assert found["compute"] <= found["budget"]["rollouts"] < found["compute"] + found["batch_size"]
    spent = found["cost"].get(unit)
    if spent is not None:
        assert spent <= found["budget"]["amount"] * (1 + 1e-9)


def test_scalerl_reward_is_its_own_formula(call: Call) -> None:
    found = call("--budget", "5000h", "--law", "scalerl/8b", "--json").json
    hours = found["compute"] * 0.0065
    expected = 0.4017 + (0.610 - 0.4017) / (1 + (2542 / hours) ** 1.92)
    assert found["expected"]["value"] == pytest.approx(expected, abs=0.002)
    assert found["learning_rate"] == 5e-7
    assert found["recipe"]["loss"] == "cispo"


def test_a_law_of_ones_own_is_planned_with(call: Call, own_law: Path) -> None:
    small = call("--budget", "1e5", "--law", own_law, "--json").json
    large = call("--budget", "2e6", "--law", own_law, "--json").json
    assert small["rollouts_per_problem"] < large["rollouts_per_problem"] == 64
    fixed = call(
        "--budget", "2e6", "--law", own_law, "--problems-per-batch", "64", "--max-batch", "2048", "--json"
    ).json
    assert fixed["problems_per_batch"] == 64 and fixed["batch_size"] <= 2048 and fixed["mode"] == "n"
    batch = call("--budget", "2e6", "--law", own_law, "--batch", "1024", "--json").json
    assert batch["batch_size"] == 1024 and batch["mode"] == "batch"
    fails(call("--budget", "2e6", "--law", own_law, "--metric", "best@4"), "--metric best@4")
    between = call("--budget", "2e6", "--law", own_law, "--n", "24,48", "--json").json
    assert between["rollouts_per_problem"] in (24, 48)
    assert "interpolated" in {w["code"] for w in between["warnings"]}


def test_runs_are_fitted_on_the_spot(call: Call, sweep: Path) -> None:
    found = call("--budget", "1e6", "--law", sweep / "runs", "--replicates", "60", "--json").json
    assert found["rollouts_per_problem"] == 64
    assert found["law"]["metric"] == "avg@4"


def test_beyond_the_range_is_said_and_far_beyond_refused(call: Call, own_law: Path) -> None:
    codes = {w["code"] for w in call("--budget", "8e6", "--law", own_law, "--json").json["warnings"]}
    assert "extrapolation" in codes
    fails(call("--budget", "1e8", "--law", own_law), "--extrapolate")
    far = call("--budget", "1e8", "--law", own_law, "--extrapolate", "--json").json
    assert "far_extrapolation" in {w["code"] for w in far["warnings"]}
    near = call("--budget", "1.5e6", "--law", own_law, "--json").json
    spread = [np.ptp(plan["expected"]["interval"]) for plan in (near, far)]
    assert spread[1] > spread[0]


def test_pass_rates_decide_the_recipe_and_the_advice(call: Call, tmp_path: Path) -> None:
    hard = tmp_path / "hard.csv"
    hard.write_text("index,pass_rate\n" + "".join(f"{i},{0 if i % 3 else 0.0625}\n" for i in range(300)))
    found = call("--budget", "2e6", "--law", "isocompute/bp32-hard", "--pass-rates", hard, "--json").json
    codes = {w["code"] for w in found["warnings"]}
    assert {"hard_only", "no_coverage", "zero_variance"} <= codes
    assert found["difficulty"] == "hard" and found["mix"]["unsolved"] == pytest.approx(2 / 3)
    counts = tmp_path / "counts.jsonl"
    counts.write_text("".join(json.dumps({"correct": 14, "samples": 16}) + "\n" for _ in range(50)))
    easy = call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--pass-rates", counts, "--json").json
    assert easy["difficulty"] == "easy" and easy["mix"]["mean"] == pytest.approx(0.875)
    assert "very_easy" in {w["code"] for w in easy["warnings"]}


def test_pass_rates_inside_verl_data_are_found(call: Call, tmp_path: Path) -> None:
    import polars as pl

    path = tmp_path / "data.parquet"
    info = [{"index": i, "model_a_pass_rate": 0.5, "model_b_pass_rate": 0.0} for i in range(40)]
    pl.DataFrame({"extra_info": info, "__index_level_0__": list(range(40))}).write_parquet(path)
    args = ("--budget", "2e6", "--law", "isocompute/bp32-easy", "--pass-rates", path)
    fails(call(*args), "extra_info.model_a_pass_rate, extra_info.model_b_pass_rate")
    assert call(*args, "--pass-rate-column", "model_a_pass_rate", "--json").json["mix"]["easy"] == 1.0


def test_other_advice(call: Call) -> None:
    def codes(*args: object) -> set[str]:
        return {w["code"] for w in call("--law", "isocompute/bp32-easy", *args, "--json").json["warnings"]}

    assert {"small_set", "edge"} <= codes("--budget", "4e6", "--problems", 500, "--n", "256,512")
    assert "small_set" not in codes("--budget", "4e6", "--problems", 6000)
    assert "few_updates" in codes("--budget", "1.5e6", "--n", 512)
    assert "many_epochs" in codes("--budget", "2e6", "--problems", 60)
    assert "metric_differs" in codes("--budget", "2e6", "--metric", "worst@4")
    assert "truncation" in codes("--budget", "2e6", "--truncated", 0.12)
    assert "under_one_epoch" in codes("--budget", "2e6", "--problems", 100_000)
    assert "problems_not_in_law" in codes("--budget", "2e6", "--problems-per-batch", 64)


def test_next_writes_a_study_that_runs(call: Call, own_law: Path, tmp_path: Path) -> None:
    out = tmp_path / "next.toml"
    found = call("--budget", "8e6", "--law", own_law, "--next", 2, "--out", out, "--json").json
    assert 1 <= len(found["next"]) <= 2
    spec = read_spec(out)
    assert {(c.problems_per_batch, c.rollouts_per_problem) for c in cells(spec)} == {
        (c["problems_per_batch"], c["rollouts_per_problem"]) for c in found["next"]
    }
    assert all(c["gain"] > 0 and c["compute"] <= 8e6 for c in found["next"])
    assert spec.engine == "command"
    program, script, *arguments = spec.engine_options["command"]
    assert (program, script) == ("python", "train.py") and {"--seed={seed}", "--learning_rate={learning_rate}"} < {
        *arguments
    }
    options = {**spec.engine_options, "command": [sys.executable, script, *arguments]}
    for cell in cells(spec):
        CommandEngine().check(replace(cell, engine=options))  # it knows every name
    fails(call("--budget", "2e6", "--law", "isocompute/joint-easy", "--next", 2), "--next")


def test_next_overwrites_no_study_that_differs(call: Call, own_law: Path, tmp_path: Path) -> None:
    """The same plan again is no harm; a study of the user's, or one that they have filled in, is not written again."""
    out = tmp_path / "next.toml"
    args = ("--budget", "8e6", "--law", own_law, "--next", 2, "--out", out)
    call(*args)
    written = out.read_text()
    call(*args)
    assert out.read_text() == written
    out.write_text(written.replace("train.py", "mine.py"))
    fails(call(*args), r"next\.toml: it exists already .* --out a new name, or move it away")
    assert out.read_text() == written.replace("train.py", "mine.py")


def test_next_goes_on_with_the_study_that_made_the_runs(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    rng = np.random.default_rng(0)
    for n in (8, 16):
        points = []
        for step in range(10, 200, 10):
            value = 0.6 - 0.3 * np.exp(-step * n / 960) + 0.01 * rng.standard_normal()
            points.append({"step": step, "rollouts": step * 32 * n, "avg@4": float(value)})
        write_points(folder / f"32x{n}-s0", points, problems_per_batch=32, rollouts_per_problem=n, seed=0)
    (folder / "study.toml").write_text(
        'engine = "sim"\nseeds = [0]\n[problems]\nset = "easy"\nsize = 300\n[grid]\nproblems_per_batch = [32]\n'
        "rollouts_per_problem = [8, 16]\n[budget]\nrollouts = 1e5\n"
    )
    out = tmp_path / "next.toml"
    found = call("--budget", "1e5", "--law", folder, "--next", 1, "--out", out, "--replicates", 60, "--json").json
    spec = read_spec(out)
    assert spec.engine == "sim" and spec.problems == [{"set": "easy", "size": 300}] and spec.seeds == [1]
    assert len(cells(spec)) == len(found["next"]) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--law", "isocompute/bp32-easy"), "--budget"),
        (("--budget", "2e6"), "--law"),
        (("--budget", "two", "--law", "isocompute/bp32-easy"), "2e6"),
        (("--budget", "100", "--law", "isocompute/bp32-easy"), "256"),
        (("--budget", "2e6", "--law", "isocompute/bp32-esy"), "isocompute/bp32-easy"),
        (("--budget", "2e6", "--law", "nowhere.json"), "neither"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--difficulty", "medium"), "easy or hard"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--n", "a"), "--n"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--stable-problems", "x"), "32-256"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--lr-reference", "1e-6"), "1e-6@1024"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--max-batch", "64"), "--max-batch 256"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--min-updates", "9999"), "7812"),
        (("--budget", "500h", "--law", "isocompute/bp32-easy"), "throughput"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--gpu", "H200"), "--model"),
        (
            ("--budget", "2e6", "--law", "isocompute/bp32-easy", "--gpu", "Z9", "--gpus", "1", "--model", "none.json"),
            "none.json|Z9",
        ),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--rollouts-per-second", "-1"), "above 0"),
        (("--budget", "2e6", "--law", "isocompute/bp32-easy", "--rollouts-per-second", "8"), "--gpus 8"),
    ],
)
def test_wrong_input_is_one_line_with_what_would_work(call: Call, args: tuple[str, ...], message: str) -> None:
    fails(call(*args), message)


@pytest.mark.parametrize(
    ("budget", "options", "most"),
    [
        ("1e20", (), "1,000,000,000,000,000"),
        ("1e16", (), "1,000,000,000,000,000"),
        ("1e308", (), "1,000,000,000,000,000"),
        ("1e30tok", ("--response-tokens", "1"), "1,000,000,000,000,000tok"),
        ("1e20h", RATE, "277,000,000,000h"),
        ("$1e300", (*RATE, "--price-per-gpu-hour", "1e-5"), r"\$2,770,000"),
        ("1e308tok", ("--response-tokens", "1e-5"), "10,000,000,000tok"),
    ],
)
@pytest.mark.parametrize("law", ["isocompute/bp32-easy", "own"])
def test_a_budget_beyond_counting_is_one_line_in_its_own_unit(
    call: Call, own_law: Path, law: str, budget: str, options: tuple[str, ...], most: str
) -> None:
    path = own_law if law == "own" else law
    result = call("--budget", budget, "--law", path, "--extrapolate", *options)
    fails(result, f"--budget {most}")
    assert len(result.err) < 200


def test_the_largest_budget_that_is_named_works_and_is_not_exceeded(call: Call, own_law: Path) -> None:
    for budget in ("1e15", "999999999999999", "1e13"):
        data = call("--budget", budget, "--law", own_law, "--extrapolate", "--json").json
        for option in (data, *data["alternatives"]):
            assert option["compute"] <= float(budget)
        assert data["budget"]["used"] <= 1.0


def all_the_same(samples: list[Any]) -> list[Any]:
    """The first of these samples in the place of all of them."""
    return [all_the_same(row) for row in samples] if isinstance(samples[0], list) else samples[:1] * len(samples)


def test_laws_without_uncertainty_are_refused(call: Call, own_law: Path, tmp_path: Path) -> None:
    law = json.loads(own_law.read_text())
    stripped = {**law, "settings": [{k: v for k, v in s.items() if k != "posterior"} for s in law["settings"]]}
    printed = {k: v for k, v in law.items() if k != "settings"}
    same = json.loads(own_law.read_text())
    (samples,) = same["posteriors"]
    for name in ("stage", "base", "tail", "delay", "ceiling", "midpoint", "exponent", "path"):
        samples[name] = all_the_same(samples[name])
    for i, data in enumerate((stripped, printed, same)):
        path = tmp_path / f"{i}.json"
        path.write_text(json.dumps(data))
        fails(call("--budget", "2e6", "--law", path), "uncertainty")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "pass_rate\n0.5\n1.5\n", r"row 2 .* \[0, 1\]"),
        ("b.csv", "pass_rate\n50\n25\n", "divide by 100"),
        ("c.csv", "a_pass_rate,b_pass_rate\n0.5,0.5\n", "--pass-rate-column"),
        ("d.csv", "pass_rate\nhalf\n", "row 1 of 'pass_rate' is not a number"),
        ("e.xlsx", "0.5\n", r"\.csv"),
        ("f.csv", "pass_rate\n", "the table has no rows"),
        ("g.csv", "pass_rate\n\n", "the table has no rows"),
    ],
)
def test_wrong_pass_rates(call: Call, tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    fails(call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--pass-rates", path), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "x.toml"), r"--out x\.toml: it is where --next writes its study; give --next 4 too"),
        (
            ("--price-per-gpu-hour", "3"),
            r"--price-per-gpu-hour 3: a price needs a throughput.*--rollouts-per-second 12",
        ),
        (("--price-per-gpu-hour", "3", "--gpus", "8"), r"--throughput-from RUNS, or --model and --gpu to model one\.$"),
        (
            ("--prompt-tokens", "200"),
            r"--prompt-tokens 200: the cost model alone counts them; say --model config\.json",
        ),
        (("--pass-rate-column", "rate"), r"--pass-rate-column rate: .*; say --pass-rates FILE\.$"),
        (("--prompt-tokens", "200", *RATE), r"--prompt-tokens 200: the cost model alone counts them"),
    ],
)
def test_options_that_would_change_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(call("--budget", "2e6", "--law", "isocompute/bp32-easy", *options, "--replicates", "60"), message)
    assert list(tmp_path.iterdir()) == []


def test_out_without_next_is_refused_beside_laws(call: Call) -> None:
    fails(call("--laws", "--out", "x.toml"), "give --next 4 too")


@pytest.mark.parametrize("where", ["given", "published", "law", "timed"])
def test_a_price_counts_wherever_the_throughput_is_from(call: Call, tmp_path: Path, where: str) -> None:
    for n in (8, 16):
        points = [p | {"seconds": 2.0 * p["step"]} for p in rising(12, every=320 * n)]
        write_points(tmp_path / f"n{n}", points, problems_per_batch=32, rollouts_per_problem=n, seed=0)
    options: dict[str, tuple[str | Path, ...]] = {
        "given": ("--law", "isocompute/bp32-easy", "--budget", "2e6", *RATE),
        "published": ("--law", "scalerl/8b", "--budget", "2e6"),
        "law": ("--law", tmp_path, "--budget", "30000", "--gpus", "8"),
        "timed": ("--law", "isocompute/bp32-easy", "--budget", "2e6", "--throughput-from", tmp_path, "--gpus", "8"),
    }
    cost = call(*options[where], "--price-per-gpu-hour", "3", "--replicates", "60", "--json").json["cost"]
    assert cost["money"] == pytest.approx(3 * cost["gpu_hours"])
    if where == "law":
        fails(call("--law", tmp_path, "--budget", "30000", "--price-per-gpu-hour", "3"), "--gpus 8 alone where")


def test_runs_in_steps_or_without_n_are_refused(call: Call, tmp_path: Path) -> None:
    points = [{k: v for k, v in p.items() if k != "rollouts"} for p in rising()]
    write_points(tmp_path / "a" / "one", points)
    fails(call("--budget", "2e6", "--law", tmp_path / "a"), "steps|rollouts per problem")


def test_the_function_is_the_command() -> None:
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=200)
    again = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=200)
    assert plan.allocation == again.allocation
    assert plan.allocation.rollouts_per_problem == 256


def test_where_picks_among_runs(call: Call, tmp_path: Path) -> None:
    """Two models in one folder are refused, and what the refusal says works."""
    for model, ceiling in (("large", 0.8), ("small", 0.5)):
        for n in (8, 16):
            settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": 0, "model": model}
            write_points(tmp_path / "runs" / f"{model}-{n}", rising(12, ceiling), **settings)
    args = ("--budget", "30000", "--law", tmp_path / "runs", "--replicates", 60)
    fails(call(*args), r"2 conditions, 'large' \(2\), 'small' \(2\).*--where model=")
    values = [call(*args, "--where", f"model={m}", "--json").json["expected"]["value"] for m in ("large", "small")]
    assert values[0] > values[1] + 0.1
    fails(call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--where", "model=a"), "it selects runs")


def trainer_state(path: Path) -> Path:
    """A log of TRL's that ends in .json, with n and the batch."""
    rows = [{"step": s, "reward": 0.3 + 0.4 * s / (s + 60), "num_tokens": 900.0 * s} for s in range(10, 400, 10)]
    path.write_text(json.dumps({"global_step": 390, "log_history": rows}))
    return path


def test_a_log_that_ends_in_json_is_runs(call: Call, tmp_path: Path) -> None:
    """The error is that of any log, and does not suggest to write a law over the file."""
    log = trainer_state(tmp_path / "trainer_state.json")
    text = log.read_text()
    for args in (("--budget", "1e5"), ("--budget", "1e5", "--where", "step=10"), ("--backtest",)):
        result = call("--law", log, *args)
        assert result.code == 2
        assert "not a law" not in result.err and f"--out {log}" not in result.err
        assert "it selects runs" not in result.err and "not a folder or table" not in result.err
    fails(call("--budget", "1e5", "--law", log), "steps|rollouts per problem")
    assert log.read_text() == text
    other = tmp_path / "other.json"
    other.write_text('{"answer": 42}')
    fails(call("--budget", "1e5", "--law", other), r"neither a law, as isocompute fit RUNS --out law\.json .* nor runs")


def test_a_law_is_no_runs(call: Call, own_law: Path) -> None:
    fails(call("--law", own_law, "--backtest"), "is a law, not runs")
    fails(call("--budget", "2e6", "--law", own_law, "--where", "set=a"), "it selects runs")


def test_what_is_said_of_a_batch_larger_than_the_set_works(call: Call) -> None:
    joint = ("--budget", "2e6", "--law", "isocompute/joint-easy", "--replicates", "60")
    result = call(*joint, "--problems-per-batch", 32, "--problems", 16)
    fails(result, "32 × 8 would with at least 32 problems")
    assert "--problems-per-batch 16" not in result.err  # for which the law does not answer
    assert call(*joint, "--problems-per-batch", 32, "--problems", 32).code == 0
    easy = ("--budget", "2e6", "--law", "isocompute/bp32-easy", "--replicates", "60", "--problems", 16)
    fails(call(*easy, "--problems-per-batch", 32), "or 16 × 8 with --problems-per-batch 16")
    assert call(*easy, "--problems-per-batch", 16).code == 0


def test_runs_that_do_not_say_bp_and_n_are_planned_as_the_error_says(call: Call, tmp_path: Path) -> None:
    points = [{k: v for k, v in p.items() if k != "rollouts"} for p in rising()]
    write_points(tmp_path / "runs" / "one", points)
    law = tmp_path / "law.json"
    result = call("--budget", "1e4", "--law", tmp_path / "runs")
    fails(result, "isocompute fit RUNS --problems-per-batch Bp --rollouts-per-problem n --out law.json, then --law")
    fit = partial(call.func, "fit") if isinstance(call, partial) else call
    given = ("--problems-per-batch", 32, "--rollouts-per-problem", 8, "--replicates", 60, "--out", law)
    assert fit(tmp_path / "runs", *given).code == 0
    assert call("--budget", "1e4", "--law", law).code == 0


def test_hours_of_the_paper_s_machines_are_named_as_such(call: Call) -> None:
    args = ("--law", "scalerl/8b", "--rollouts-per-second", 12, "--gpus", 8, "--replicates", 60)
    result = call("--budget", "8000h", *args)
    fails(result, r"8,000 GPU-hours buys rollouts that took 281k GPU-hours on the machines of scalerl/8b's paper")
    assert call("--budget", "4550h", *args).code == 0  # what it says


def test_what_an_error_suggests_works(call: Call) -> None:
    easy = ("--law", "isocompute/bp32-easy", "--replicates", "60")
    few = call("--budget", "2e6", *easy, "--problems", 16)
    fails(few, "or 16 × 8 with --problems-per-batch 16")
    assert call("--budget", "2e6", *easy, "--problems", 16, "--problems-per-batch", 16).code == 0
    fails(call("--budget", "2e6", *easy, "--min-updates", 10**6), "raise the budget to 256,000,000 with --extrapolate")
    assert call("--budget", "256,000,000", *easy, "--min-updates", 10**6, "--extrapolate").code == 0
    near = call("--budget", "2e6", *easy, "--min-updates", 10**5)
    fails(near, "raise the budget to 25,600,000.")
    assert call("--budget", "25,600,000", *easy, "--min-updates", 10**5).code == 0


def test_digits_are_those_that_count(call: Call) -> None:
    fails(call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--stable-problems", "²-4"), "--stable-problems ²-4")
    fails(call("--budget", "2e6", "--law", "isocompute/bp32-easy", "--metric", "avg@²"), "--metric avg@²")
