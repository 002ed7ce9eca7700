from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from isocompute.api import ablate, analyse_ablation
from isocompute.cli.main import app
from isocompute.core.errors import InputError
from isocompute.core.recipe import LEAVE_ONE_OUT, make_recipe
from isocompute.sweep import Progress, parse_spec
from isocompute.sweep.ablate import with_variants
from tests.commands import Call
from tests.conftest import write_points
from tests.sweep.tools import points, write_spec

SPEC = """
engine = "sim"
problems = {set = "easy", size = 200}
recipe = {name = "grpo", learning_rate = 0.02}
grid = {problems_per_batch = [16], rollouts_per_problem = [8]}
budget = {rollouts = 40_000}
seeds = [0, 1]
evaluation = {points = 20}
[variants.slow]
recipe = {learning_rate = 0.0002}
"""


def test_a_spec_becomes_a_table(tmp_path: Path):
    (tmp_path / "spec.toml").write_text(SPEC)
    arguments = ["ablate", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out"), "--replicates", "50"]
    first = CliRunner().invoke(app, [*arguments, "--json"])
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert (found["metric"], found["recipe"]["name"], found["recipe"]["seeds"]) == ("avg@4", "whole", 2)
    (slow,) = found["parts"]
    assert slow["reached"] < found["recipe"]["reached"]
    assert slow["comparison"]["ahead_now"] == "a"  # a hundredth of the learning rate is behind
    low, high = slow["predicted_interval"]
    assert low <= slow["predicted"] <= high
    again = CliRunner().invoke(app, arguments)  # nothing is run twice
    assert again.exit_code == 0 and "slow" in again.stdout and "predicted" in again.stdout


def fake(path: Path, **options: Any) -> Path:
    """A recipe and a variant of it on the fake engine, one cell each."""
    return write_spec(
        path,
        seeds=[11],  # a walk that rises, so that there is something to fit
        grid={"problems_per_batch": [2], "rollouts_per_problem": [2]},
        variants={"less": {"recipe": {"kl_coef": 0.0}}},
        engine_options=options,
    )


def test_the_folder_may_be_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    address = f"file://{tmp_path}/out"
    found = ablate(spec=fake(tmp_path / "spec.toml"), out=address, replicates=20)
    assert found.folder == address
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "spec.toml"]
    assert ablate(spec=tmp_path / "spec.toml", replicates=20).folder == "spec"


@pytest.mark.parametrize("json_too", [False, True])
@pytest.mark.parametrize(("fault", "failed"), [("full", 0), ("crash", 1)])
def test_a_study_that_did_not_finish_says_why(call: Call, tmp_path: Path, fault: str, failed: int, json_too: bool):
    spec = fake(tmp_path / "spec.toml", **{fault: ["less/2x2-s11"]})
    said = call("ablate", spec, "--out", tmp_path / "out", "--workers", "1", *["--json"] * json_too)
    assert said.code == 1
    assert ("No space left on device; what is written is kept" in said.err) == (fault == "full")
    if not json_too:
        assert ("ZeroDivisionError: told to crash" in said.out) == (fault == "crash")
        return
    told = json.loads(said.out)
    assert (told["folder"], told["cells"], told["stopped"], len(told["failed"])) == (
        str(tmp_path / "out"),
        2,
        False,
        failed,
    )
    assert (told["unwritable"] is None) == (fault == "crash")


def test_ctrl_c_while_the_last_cells_run_to_their_end_leaves_the_analysis(tmp_path: Path):
    out, both = tmp_path / "out", ["whole/2x2-s11", "less/2x2-s11"]
    spec = fake(tmp_path / "spec.toml", wait=both, deaf=both)
    sent: list[int] = []

    def interrupt(_: Progress) -> None:
        if not sent and all(len(points(out).get(name, b"").splitlines()) == 2 for name in both):
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    found = ablate(spec=spec, out=out, workers=2, replicates=20, report=interrupt)
    assert sent and found.study is not None
    assert (found.study.finished, found.study.stopped, found.study.interrupted) == (2, False, True)
    assert [part.name for part in found.ablation.parts] == ["less"]


SOURCES = """
engine = "lm"
problems = {sources = {short = "chain:1-2", long = "chain:6-8"}}
recipe = {name = "grpo"}
grid = {problems_per_batch = [8], rollouts_per_problem = [8]}
budget = {rollouts = 40_000}
seeds = [0, 1]
[variants.less]
recipe = {learning_rate = 1e-5}
"""
STEPS = np.unique(np.geomspace(1, 1000, 40).round().astype(int))


def hill(ceiling: float, middle: float, *, seed: int, noise: float = 0.004) -> list[float]:
    """Values from .3 up, a curve of known ceiling and half-way compute with a little noise."""
    truth = 0.3 + (ceiling - 0.3) / (1 + (middle / (64 * STEPS)) ** 1.5)
    made: list[float] = (truth + noise * np.random.default_rng(seed).standard_normal(len(STEPS))).tolist()
    return made


def write_study(folder: Path, sides: dict[str, dict[str, tuple[float, float]]]) -> Path:
    """A finished leave-one-out study: for each side and metric, the ceiling and the half-way compute."""
    for side, metrics in sides.items():
        for seed in (0, 1):
            columns = {name: hill(*curve, seed=10 * len(side) + seed) for name, curve in metrics.items()}
            rows = [
                {"step": int(step), "rollouts": int(step) * 64, **{name: values[i] for name, values in columns.items()}}
                for i, step in enumerate(STEPS)
            ]
            settings = {"problems_per_batch": 8, "rollouts_per_problem": 8, "seed": seed}
            write_points(folder / side / f"8x8-s{seed}", rows, **settings)
    (folder / "study.toml").write_text(SOURCES)
    return folder


def test_each_source_is_judged_by_itself_where_it_was_measured(tmp_path: Path):
    """The part raises the ceiling on the long problems alone; `best@4` was measured on all of them together."""
    same = {"avg@4": (0.7, 3000.0), "short/avg@4": (0.8, 3000.0), "best@4": (0.9, 3000.0)}
    folder = write_study(
        tmp_path / "study",
        {"whole": {**same, "long/avg@4": (0.7, 3000.0)}, "less": {**same, "long/avg@4": (0.5, 3000.0)}},
    )
    found = analyse_ablation(folder, replicates=100)
    assert {name: task.parts[0].verdict for name, task in found.tasks.items()} == {
        "short": "no difference seen",
        "long": "raises the ceiling",
    }
    assert analyse_ablation(folder, metric="best@4", replicates=100).tasks == {}


def test_a_part_that_leads_where_nothing_else_can_be_told_says_so(tmp_path: Path):
    """Both are far from their ceilings and from half-way, so neither can be compared; the last values can."""
    folder = write_study(tmp_path / "study", {"whole": {"avg@4": (0.9, 3e5)}, "less": {"avg@4": (0.9, 5e5)}})
    (part,) = analyse_ablation(folder, replicates=100).ablation.parts
    assert part.comparison is not None
    assert (part.comparison.higher, part.comparison.faster, part.comparison.ahead_now) == (
        "undecided",
        "undecided",
        "a",
    )
    assert part.verdict == "leads at the end"


def test_parts_of_scalerl_are_left_out_by_themselves():
    text = SPEC.partition("[variants")[0].replace('"grpo"', '"scalerl"').replace('"sim"', '"lm"')
    spec = parse_spec(with_variants(text.encode(), name="spec.toml"))
    assert list(spec.variants) == list(LEAVE_ONE_OUT["scalerl"])
    whole = make_recipe(spec.recipe)
    for name, variant in spec.variants.items():
        without = make_recipe({**spec.recipe, **variant.recipe})
        assert without != whole, name
    assert make_recipe({**spec.recipe, **spec.variants["no-curriculum"].recipe}).no_positive_resampling is None


def test_a_recipe_without_a_list_of_parts_is_named():
    with pytest.raises(InputError, match=r"nothing to leave out: recipe 'grpo' has no list of parts \(scalerl has\)"):
        with_variants(SPEC.partition("[variants")[0].encode(), name="spec.toml")


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (('problems = {set = "easy", size = 200}', "[[problems]]"), [], "one [problems] table"),
        (("rollouts_per_problem = [8]", "rollouts_per_problem = [8, 16]"), [], "recipes are compared at one Bp and n"),
        (("points = 20", "points = 3"), [], "a fit needs 4"),
        (("", ""), ["--fit-share", "2"], "--fit-share 2"),
        (("", ""), ["--unit", "euros"], "--unit euros"),
        (("", ""), ["--unit", "tokens"], "--unit tokens: cell whole/easy/16x8-s0 of "),
        (("", ""), ["--metric", "avg@8"], "--metric avg@8: cell whole/easy/16x8-s0 of "),
        (("", ""), ["--metric", "reward"], "will have none; it is one of avg@4, "),
        (("[variants.slow]", "[variants]"), [], "variants"),
    ],
)
def test_what_could_not_be_analysed_is_not_run(change: tuple[str, str], options: list[str], says: str, tmp_path: Path):
    text = SPEC.replace(*change)
    if change[1] == "[[problems]]":
        text = SPEC.replace(change[0], "")
        text += '[[problems]]\nset = "easy"\nsize = 50\n[[problems]]\nset = "hard"\nsize = 50\n'
    (tmp_path / "spec.toml").write_text(text)
    answer = CliRunner().invoke(app, ["ablate", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out"), *options])
    assert isinstance(answer.exception, InputError) and says in str(answer.exception)
    assert not (tmp_path / "out").exists()
