from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config

from isocompute import sweep as study
from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError
from isocompute.core.recorder import CHECKPOINT, RUNNING, LostError, Owner, Recorder, this_process
from isocompute.data import RunSettings, load
from isocompute.rl import loop as training_module
from isocompute.rl.engine import LmEngine
from isocompute.rl.losses import kl_to_base
from isocompute.rl.model.checkpoint import load_model, model_folder, save_decoder
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.engine import SamplingSettings
from isocompute.rl.setup import set_up
from isocompute.sweep.train import TrainSpec, train
from tests.rl.cells import TABLES, Control, checkpoint_every_update, distance, make_cell, points, run, weights
from tests.rl.models import eager, requests, weights_of
from tests.rl.test_chain import left_to_right
from tests.sweep.tools import write_spec

WRITTEN = ("run.json", "points.jsonl", "pass_rates.jsonl", "samples.jsonl")
"""Files of a run that stay."""


def base_weights() -> dict[str, torch.Tensor]:
    return {f"model.{name}": value for name, value in weights_of(load_model("tiny").decoder).items()}


def spec_of(cell: Cell) -> TrainSpec:
    return TrainSpec(
        problems_per_batch=cell.problems_per_batch,
        rollouts_per_problem=cell.rollouts_per_problem,
        update_steps=cell.update_steps,
        problems=dict(cell.problems),
        recipe=dict(cell.recipe),
        evaluation=dict(cell.evaluation),
        engine_options=dict(cell.engine),
    )


# Divergence


def poison(monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """The update after `at` others leaves NaN in the weights, as a fault that no gradient shows would."""
    inner, done = training_module.update, []

    def update(decoder: Decoder, *args: Any, **named: Any) -> Any:
        stats = inner(decoder, *args, **named)
        done.append(1)
        if len(done) > at:
            with torch.no_grad():
                decoder.norm.weight.fill_(float("nan"))
        return stats

    monkeypatch.setattr(training_module, "update", update)


@pytest.mark.parametrize("points_wanted", [2, 10])
def test_poisoned_weights_end_the_run_with_the_base(
    points_wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    poison(monkeypatch, at=1)
    # With 10 points there is an evaluation between the bad update and the next, with 2 there is none.
    folder = run(make_cell(evaluation={"points": points_wanted}, engine={"save_model": False}), tmp_path)
    summary = json.loads((folder / "finished.json").read_text())
    assert summary["diverged"].startswith("diverged at update 3: ")
    assert distance(weights(folder), base_weights()) == 0.0
    assert points(folder)[-1]["step"] <= 2
    assert not (folder / "checkpoint.npz").exists()


def test_the_evaluation_that_shows_a_collapse_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("isocompute.rl.update._COLLAPSE", 1e-9)  # the first update is far from the base
    folder = run(make_cell(update_steps=8, evaluation={"points": 4}), tmp_path)
    summary, kept = json.loads((folder / "finished.json").read_text()), points(folder)
    assert summary["diverged"].startswith("diverged at update 2: the policy has collapsed (KL to the base")
    assert [point["step"] for point in kept] == [0, 1, 2] and kept[-1]["kl"] > 1e-9
    assert (summary["points"], summary["rollouts"]) == (3, kept[-1]["rollouts"])
    rates = [json.loads(line) for line in (folder / "pass_rates.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rates} == {0, 1, 2}


def test_the_last_good_checkpoint_is_older_than_the_bad_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good = run(make_cell(update_steps=2), tmp_path / "good")
    checkpoint_every_update(monkeypatch)
    poison(monkeypatch, at=2)
    folder = run(make_cell(update_steps=6, evaluation={"points": 2}), tmp_path / "bad")
    assert "diverged" in json.loads((folder / "finished.json").read_text())
    assert distance(weights(folder), weights(good)) == 0.0


def test_stopping_on_spoilt_weights_is_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    poison(monkeypatch, at=0)
    tmp_path.mkdir(exist_ok=True)
    assert LmEngine().run(make_cell(evaluation={"points": 2}), tmp_path, Control(stop_after=32))
    assert json.loads((tmp_path / "finished.json").read_text())["diverged"].startswith("diverged at update 1: ")


@pytest.mark.parametrize("rate", [1.0, 1e3, 1e6, 1e30])
def test_an_absurd_learning_rate(rate: float, tmp_path: Path):
    result = train(spec_of(make_cell(recipe={"learning_rate": rate})), out=tmp_path / "run")
    assert result.finished and result.diverged is not None and result.diverged.startswith("diverged at update ")
    assert result.model is not None
    assert all(bool(torch.isfinite(value).all()) for value in weights(tmp_path / "run").values())
    again = train(spec_of(make_cell(recipe={"learning_rate": rate})), out=tmp_path / "run")
    assert again == result


def test_a_small_nucleus_of_no_numbers_draws_something():
    decoder = load_model("tiny").decoder
    with torch.no_grad():
        decoder.norm.weight.fill_(float("nan"))
    out = eager(decoder, requests([[7, 3, 8, 2]], seed=0), SamplingSettings(3, top_p=0.9, stop_tokens=(1,)))
    assert len(out) == 1


# Wrong input


def checkpoint(folder: Path, **config: Any) -> Path:
    """The built-in model with another config.json."""
    save_decoder(load_model("tiny").decoder, folder, tokenizer_from=model_folder("tiny"))
    change_json(folder / "config.json", **config)
    return folder


def change_json(path: Path, **changes: Any) -> None:
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def refused(cell: Cell, message: str, out: Path) -> None:
    """One line, and nothing is written."""
    with pytest.raises(InputError, match=message) as caught:
        train(spec_of(cell), out=out)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_an_unsupported_family(tmp_path: Path):
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    refused(make_cell(engine={"model": str(tmp_path / "gpt2")}), "model_type 'gpt2' is not supported", tmp_path / "out")
    other = checkpoint(tmp_path / "gelu", hidden_act="gelu")
    refused(make_cell(engine={"model": str(other)}), "hidden_act 'gelu' is not supported", tmp_path / "out")


def test_no_stop_token(tmp_path: Path):
    folder = checkpoint(tmp_path / "model", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    change_json(folder / "tokenizer_config.json", eos_token=None)
    refused(make_cell(engine={"model": str(folder)}), "no stop token; set eos_token_id", tmp_path / "out")
    (folder / "generation_config.json").write_text('{"eos_token_id": []}')
    refused(make_cell(engine={"model": str(folder)}), "no stop token; set eos_token_id", tmp_path / "out")


def test_a_checkpoint_in_pieces(tmp_path: Path):
    folder, out = checkpoint(tmp_path / "model"), tmp_path / "out"
    cell = make_cell(engine={"model": str(folder)})
    change_json(folder / "config.json", num_hidden_layers=2)
    refused(cell, r"'layers\.2\..*' has no place in the model", out)
    change_json(folder / "config.json", num_hidden_layers=4)
    refused(cell, r"the weight 'layers\.3\..*' is missing", out)
    change_json(folder / "config.json", num_hidden_layers=3, intermediate_size=100)
    refused(cell, "config.json says", out)
    (folder / "model.safetensors").write_bytes(b"torn")
    refused(cell, r"model\.safetensors: damaged", out)
    (folder / "model.safetensors.index.json").write_text("{")
    refused(cell, r"index\.json: damaged", out)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    refused(cell, "this engine reads safetensors", out)
    refused(make_cell(engine={"model": str(tmp_path / "nowhere")}), "no checkpoint there", out)
    other = checkpoint(tmp_path / "other")  # another name: a worker reads the problems of a model once
    (other / "tokenizer.json").unlink()
    refused(make_cell(engine={"model": str(other)}), r"tokenizer\.json: not there", out)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"vocab_size": "abc"}, r"config\.json: 'vocab_size' is 'abc', not a whole number"),
        ("config.json", {"hidden_size": None}, r"config\.json: 'hidden_size' is missing"),
        ("config.json", {"num_attention_heads": 0}, "'num_attention_heads' is 0, not a whole number above 0"),
        ("config.json", {"num_key_value_heads": 3}, "no multiple of the 3 of 'num_key_value_heads'"),
        ("config.json", {"head_dim": 7}, "'head_dim' is 7; RoPE turns pairs"),
        ("config.json", {"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes', not true or false"),
        ("config.json", {"rope_parameters": {"rope_type": "yarn"}}, "'factor' is missing"),
        (
            "generation_config.json",
            {"eos_token_id": "<eos>"},
            r"config\.json: eos_token_id: '<eos>' is not a token's id",
        ),
        ("generation_config.json", {"eos_token_id": ["<eos>"]}, "'<eos>' is not a token's id"),
        ("generation_config.json", {"eos_token_id": 99}, "eos_token_id: token 99 is beyond the 29 of vocab_size"),
        ("isocompute.json", {"recipe": [1]}, "'recipe' is not a table"),
    ],
)
def test_damaged_fields_are_named(file: str, changes: dict[str, Any], message: str, tmp_path: Path):
    folder = checkpoint(tmp_path / "model")
    change_json(folder / file, **changes)
    refused(make_cell(engine={"model": str(folder)}), message, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "[1]", r"config\.json: not a table of fields"),
        ("generation_config.json", "[1]", r"generation_config\.json: not a table of fields"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "damaged .weight_map has to name files"),
    ],
)
def test_damaged_files_are_named(file: str, content: str, message: str, tmp_path: Path):
    folder = checkpoint(tmp_path / "model")
    (folder / file).write_text(content)
    refused(make_cell(engine={"model": str(folder)}), message, tmp_path / "out")


def test_a_tokenizer_of_more_words_than_the_model_has(tmp_path: Path):
    folder = checkpoint(tmp_path / "model")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]
    change_json(folder / "tokenizer.json", model={**words, "vocab": {**words["vocab"], "0": 5000}})
    refused(make_cell(engine={"model": str(folder)}), "token 5000 is beyond the 29 of vocab_size", tmp_path / "out")


def test_a_base_that_is_not_finite_is_said_so(tmp_path: Path):
    """Not as a divergence of the run, with advice on its learning rate."""
    folder = checkpoint(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    refused(make_cell(engine={"model": str(folder)}), r"'norm\.weight' holds weights that are NaN", tmp_path / "out")


def test_problems_without_answers(tmp_path: Path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "7 + 3 =", "answer": "10"}\n{"question": "7 + 4 ="}\n')
    refused(make_cell(problems={"source": str(path), "size": None, "validation": 1}), "answer", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollouts_per_problem": 1}, "rollouts_per_problem: 1 rollout has no group"),
        ({"problems": {"max_new_tokens": 60}}, "do not fit the model's context of 64; lower problems.max_new_tokens"),
        ({"problems": {"source": "chain:20"}}, r"validation|train.* do not fit the model's context"),
        ({"problems_per_batch": 25}, "25 is more than the 24 problems of the set"),
        ({"recipe": {"baseline_rollouts": 2}}, "baseline_rollouts: 2 is less than the 4 rollouts"),
        ({"recipe": {"schedule": [[64, 8]]}}, "recipe: schedule is gone"),
        ({"recipe": {"name": "isocompute-easy", "top_p": 0.9}}, "recipe.top_p: below 1"),
        ({"recipe": {"learning_rat": 1}}, "recipe.learning_rat: .*; fields are loss, advantage"),
        ({"recipe": {"name": "grop"}}, "recipe.name: 'grop' is not one of cispo"),
        ({"problems": {"sizes": 1}}, "problems.sizes: .*; fields are set, source"),
        ({"problems": {"set": "mine", "source": None}}, "problems.source: say where 'mine' comes from"),
        ({"problems": {"source": "nowhere.jsonl"}}, "nowhere.jsonl: no such file"),
        ({"evaluation": {"sample": 4}}, "evaluation.sample: "),
        ({"evaluation": {"k": [8]}}, r"evaluation.k: \[8\] must lie between 1 and samples = 4"),
        ({"engine": {"micro": 1}}, "engine_options.micro: .*; fields are model, device"),
        ({"engine": {"micro_batch": 0}}, "engine_options.micro_batch: "),
        ({"engine": {"device": "gpu"}}, "engine_options.device: 'gpu' is not cpu, cuda"),
        ({"engine": {"device": "cuda"}}, "torch sees no GPU"),
    ],
)
def test_wrong_fields(changes: dict[str, Any], message: str, tmp_path: Path):
    if "cuda" in str(changes) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused(make_cell(**changes), message, tmp_path / "out")


def test_one_rollout_without_a_group_is_fine():
    for recipe in ({"advantage": "none"}, {"name": "ppo"}, {"baseline_rollouts": 4}):
        LmEngine().check(make_cell(rollouts_per_problem=1, recipe=recipe))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes."),
    ],
)
def test_out_of_memory_names_the_sizes(error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(training_module, "update", fail)
        refused(
            make_cell(engine={"sample_batch": 24}),
            r"out of memory with 24 rollouts in flight and passes of \d+ tokens; try engine_options.sample_batch = 12, "
            r"then engine_options.recompute = true, then recipe.lora_rank = 32\.",
            tmp_path / "out",
        )
    # Some way into a run, the folder goes on with the smaller ones.
    checkpoint_every_update(monkeypatch)
    out, calls, inner = tmp_path / "later", [], training_module.update

    def fail_later(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise error
        return inner(*args, **named)

    monkeypatch.setattr(training_module, "update", fail_later)
    with pytest.raises(InputError, match="out of memory"):
        train(spec_of(make_cell()), out=out)
    assert train(spec_of(make_cell(engine={"sample_batch": 12, "recompute": True})), out=out).finished
    assert [point["rollouts"] for point in points(out)] == [0, 32, 64, 128]


def test_other_faults_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(training_module, "update", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        LmEngine().run(make_cell(), tmp_path, Control())


# What a run tells


def test_samples_can_be_read(tmp_path: Path):
    """Some responses of every evaluation with their problems, rewards and ends."""
    cell = make_cell(
        update_steps=1, problems={"out_of_distribution": {"longer": "chain:6"}}, evaluation={"keep_samples": 3}
    )
    folder = run(cell, tmp_path / "some")
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [(row["step"], row["set"]) for row in rows] == [
        (step, name) for step in (0, 1) for name in ("validation", "longer") for _ in range(3)
    ]
    for row in rows:
        assert set(row) == {"step", "set", "problem", "question", "response", "reward", "tokens", "stopped"}
        words = row["response"].split()
        assert len(words) == row["tokens"] and row["stopped"] == (words[-1] == "<eos>")
        value = str(left_to_right(row["question"], 23)[-1])
        assert row["reward"] == float(row["stopped"] and words[-2:-1] == [value])
    assert {row["problem"] for row in rows[:3]} == {row["problem"] for row in rows[6:9]}  # the same problems each time
    assert len({row["problem"] for row in rows[:3]}) == 3
    none = run(make_cell(update_steps=1, evaluation={"keep_samples": 0}), tmp_path / "none")
    assert not (none / "samples.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, r"eager rollouts \(without a GPU\), up to 48 at a time; training passes of [\d,]+ tokens; float32 on CPU"),
        (
            {"rollout": "captured", "sample_batch": 16, "recompute": True, "dtype": "bfloat16"},
            r"captured rollouts \(as engine_options.rollout asks\), up to 16 at a time; "
            r"training passes of [\d,]+ tokens, activations recomputed; bfloat16 on CPU",
        ),
    ],
)
def test_the_header_says_which_engine_runs_and_why(options: dict[str, Any], text: str, tmp_path: Path):
    said: list[str] = []
    cell = make_cell(update_steps=1, engine=options)
    assert LmEngine(on_start=said.append).run(cell, tmp_path, Control())
    assert len(said) == 1 and re.fullmatch(text, said[0])
    assert json.loads((tmp_path / "run.json").read_text())["rollout"] == options.get("rollout", "eager")


def test_either_engine_makes_the_same_run(tmp_path: Path):
    eager_run, captured_run = (
        points(run(make_cell(engine={"rollout": name}), tmp_path / name)) for name in ("eager", "captured")
    )
    for mine, theirs in zip(captured_run, eager_run, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_speeds_are_those_of_the_updates(tmp_path: Path):
    """Rollouts and tokens over the seconds of training since the last point."""
    folder = run(make_cell(), tmp_path)
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    for before, after in pairwise(rows):
        seconds = after["seconds"] - before["seconds"]
        for unit in ("rollouts", "tokens"):
            assert after[f"{unit}_per_second"] == pytest.approx((after[unit] - before[unit]) / seconds, rel=1e-3)


def test_the_learning_rate_in_use_is_logged(tmp_path: Path):
    recipe = {"warmup_steps": 4, "learning_rate": 1e-3, "lr_reference_batch": 128, "lr_scaling": "sqrt"}
    found = points(run(make_cell(recipe=recipe), tmp_path))
    assert [point.get("learning_rate") for point in found] == [None, *(pytest.approx(5e-4 * m / 4) for m in (1, 2, 4))]


# Studies


def test_a_study_runs_and_goes_on(tmp_path: Path):
    spec = write_spec(
        tmp_path / "study.toml",
        engine="lm",
        seeds=[0],
        grid={"problems_per_batch": [4], "rollouts_per_problem": [2, 4]},
        budget={"rollouts": 64},
        problems={"set": "easy", "size": 16, "validation": 8},
        recipe=TABLES["recipe"],
        evaluation={"points": 3, "samples": 4},
        engine_options={"device": "cpu"},
    )
    result = study.run(spec=spec, out=tmp_path / "out", workers=1)
    assert (result.cells, result.finished, result.failed) == (2, 2, {})
    again = study.run(spec=spec, out=tmp_path / "out", workers=1)
    assert (again.skipped, again.new_rollouts) == (2, 0)
    runs = {run.name: run for run in load(tmp_path / "out")}
    assert sorted(runs) == ["easy/4x2-s0", "easy/4x4-s0"]
    assert {run.points["rollouts"].max() for run in runs.values()} == {64}
    cell = make_cell(
        problems_per_batch=4, update_steps=4, problems={"size": 16, "validation": 8}, evaluation={"k": [4]}
    )
    alone = run(cell, tmp_path / "alone")
    assert points(tmp_path / "out" / "easy" / "4x4-s0") == points(alone)
    grid = {"problems_per_batch": [4], "rollouts_per_problem": [1, 2]}
    one = write_spec(tmp_path / "one.toml", engine="lm", grid=grid)
    with pytest.raises(InputError, match="rollouts_per_problem: 1 rollout"):
        study.run(spec=one, out=tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_the_engine_needs_no_tables_and_no_charts():
    code = (
        "import sys, isocompute.rl.engine\n"
        "print([name for name in ('polars', 'altair', 'transformers', 'datasets', 'scipy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_run_that_another_host_took_over_leaves_no_model(tmp_path: Path) -> None:
    claim = tmp_path / RUNNING
    claim.write_text(json.dumps(asdict(this_process())))
    cell = make_cell()

    class TakenOver(Control):
        def advanced(self, rollouts: int) -> None:
            super().advanced(rollouts)
            if self.rollouts == cell.compute:
                claim.write_text(json.dumps(asdict(Owner("elsewhere", 1, "1"))))

    with pytest.raises(LostError, match="taken over by process 1 on elsewhere"):
        LmEngine().run(cell, tmp_path, TakenOver())
    assert {path.name for path in tmp_path.iterdir()} == {RUNNING, *WRITTEN}


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(InputError, match=r"damaged .*; remove the run's folder"):
        Recorder(tmp_path, RunSettings()).resume()


@pytest.mark.parametrize("name", ["points.jsonl", "pass_rates.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("left", [None, 20])
def test_lost_lines_are_noticed_before_anything_is_cut(name: str, left: int | None, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, RunSettings())
    recorder.resume()
    for step in range(3):
        recorder.append({"step": step, "rollouts": 8 * step})
        recorder.append_rates({"step": step, "set": "train", "correct": [1, 2, 3]})
        recorder.append_sample({"step": step, "response": "so it is 4"})
    recorder.checkpoint({}, {"step": 2})
    recorder.append({"step": 3, "rollouts": 24})
    recorder.close()
    if left is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:left])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    there = "is gone" if left is None else "has 20 bytes"
    with pytest.raises(InputError, match=rf"{name}: {there}, checkpoint\.npz counts \d+: lines are lost; put the file"):
        Recorder(tmp_path, RunSettings()).resume()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("recipe", [{"name": "dapo", "zero_variance_filter": "refill"}, {"name": "scalerl"}])
def test_an_engine_knows_what_its_points_will_hold(recipe: dict[str, Any], tmp_path: Path) -> None:
    problems = {"source": None, "sources": {"a": "chain:2", "b": "chain:3"}, "out_of_distribution": {"far": "chain:7"}}
    cell = make_cell(recipe=recipe, problems=problems, update_steps=2)
    known, last = LmEngine().measures(cell), points(run(cell, tmp_path))[-1]
    assert set(last) - {"step", "rollouts", "tokens"} <= known.metrics
    assert {name for name in known.metrics if "@" in name and not name.endswith("/error")} <= set(last)
    assert known.units == {"rollouts", "tokens", "steps"}


def test_k3_does_not_go_below_zero_by_rounding() -> None:
    logprobs = -torch.linspace(0.01, 3.0, 400)
    near = logprobs + torch.linspace(-3e-4, 3e-4, 400)
    assert (kl_to_base(logprobs, near) >= 0).all()
    exact = kl_to_base(logprobs.double(), near.double())
    torch.testing.assert_close(kl_to_base(logprobs, near).double(), exact, rtol=1e-2, atol=2e-11)


def test_a_folder_whose_weights_were_replaced_is_another_base(tmp_path: Path):
    base = tmp_path / "base"
    shutil.copytree(model_folder("tiny"), base)
    cell = make_cell(engine={"model": str(base)})
    (base / "latest").symlink_to("checkpoint-500")  # which is gone
    before = set_up(cell).model
    assert set_up(cell).model is before
    os.utime(base / "model.safetensors", ns=(1, 1))
    assert set_up(cell).model is not before


def test_half_a_checkpoint_of_a_killed_process_is_removed(tmp_path: Path):
    torn = tmp_path / f".{CHECKPOINT}.ab12"
    torn.write_bytes(b"half")
    with Recorder(tmp_path, RunSettings()) as recorder:
        recorder.resume()
    assert not torn.exists()


def test_a_source_too_long_for_a_file_is_named():
    with pytest.raises(InputError, match="gym:a"):
        set_up(make_cell(problems={"source": "gym:" + "a" * 300}))
