from __future__ import annotations

import errno
import json
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.core.metrics import avg_at_k, best_at_k, worst_at_k
from isocompute.core.recipe import RECIPES
from isocompute.rl import loop as training_module
from isocompute.rl import losses
from isocompute.rl.engine import LmEngine
from tests.rl.cells import (
    CLOCK,
    Control,
    checkpoint_every_update,
    count_graded,
    distance,
    make_cell,
    make_training,
    points,
    rates,
    run,
    weights,
)

RECIPE_CASES: dict[str, dict[str, Any]] = {
    "isocompute-easy": {"recipe": {"name": "isocompute-easy"}},
    "ppo": {"recipe": {"name": "ppo", "updates_per_batch": 2}},
    "retiring": {"recipe": {"name": "dapo", "no_positive_resampling": 0.7}},
    "decoupled": {"recipe": {"name": "grpo", "baseline_rollouts": 6}},
    "off-policy": {"recipe": {"name": "cispo", "off_policy_steps": 3, "length_control": "penalty"}},
    "refilled": {"recipe": {"name": "dapo", "zero_variance_filter": "refill"}},
    "captured": {"engine": {"rollout": "captured"}},
    "interrupted": {
        "recipe": {"name": "cispo", "length_control": "interrupt", "interrupt_window": [2, 3], "answer_tokens": 1}
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Uninterrupted runs by name, made once."""
    top = tmp_path_factory.mktemp("whole")

    def make(name: str) -> Path:
        if not (top / name).exists():
            run(make_cell(**RECIPE_CASES[name]), top / name)
        return top / name

    return make


# Counting


@pytest.mark.parametrize(("recipe", "each"), [({}, 4), ({"baseline_rollouts": 6}, 6)])
def test_compute_is_what_the_verifier_saw(
    recipe: dict[str, Any], each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = count_graded(monkeypatch, problems=24)  # the training set
    last = points(run(make_cell(update_steps=3, recipe=recipe), tmp_path))[-1]
    assert [rows for rows, _ in seen] == [each] * 8 * 3
    assert (last["step"], last["rollouts"], last["tokens"]) == (3, 8 * each * 3, sum(tokens for _, tokens in seen))


def test_what_a_refill_drops_is_counted_too(monkeypatch: pytest.MonkeyPatch):
    """Rollouts and tokens are those that the verifier saw: problems that say nothing cost what the others cost."""
    training = make_training(
        recipe={"name": "dapo", "zero_variance_filter": "refill"}, problems={"source": "chain:easy", "size": 200}
    )
    seen = count_graded(monkeypatch, problems=200)
    for _ in range(2):
        assert training.update()
    assert len(seen) > 16  # something was dropped, and other problems sampled for it
    assert (training.rollouts, training.tokens) == tuple(np.sum(seen, axis=0).tolist())


def test_a_decoupled_baseline_trains_on_some_and_filters_on_all(monkeypatch: pytest.MonkeyPatch):
    training = make_training(recipe={"name": "dapo", "baseline_rollouts": 16}, rollouts_per_problem=1)
    made: list[Any] = []
    inner = training_module.make_batch

    def keep(*args: Any, **named: Any) -> Any:
        made.append((args[2], inner(*args, **named)))
        return made[-1][1]

    monkeypatch.setattr(training_module, "make_batch", keep)
    assert training.update()
    rewards_PN, batch = made[0]
    assert rewards_PN.shape == (8, 16) and len(batch.rollouts) == 8 and training.rollouts == 128
    mixed_P = rewards_PN.std(dim=1) > 0
    assert mixed_P.any()
    assert torch.equal(batch.advantages_BT[:, 0] != 0, mixed_P)
    assert torch.equal(batch.policy_weights_BT.sum(dim=1) > 0, mixed_P)


def test_seeds_train_on_rollouts_of_their_own_under_a_decoupled_baseline(monkeypatch: pytest.MonkeyPatch):
    """Not on those that another seed chose a step before."""
    chosen: dict[tuple[int, int], list[int]] = {}
    inner = losses.decoupled_advantages

    def keep(*args: Any, **named: Any) -> Any:
        out = inner(*args, **named)
        chosen[key] = out[1].flatten().tolist()
        return out

    monkeypatch.setattr(losses, "decoupled_advantages", keep)
    for seed in range(2):
        training = make_training(seed=seed, recipe={"name": "grpo", "baseline_rollouts": 6})
        groups = training.source.next_batch(0)
        assert groups is not None
        groups = replace(groups, rewards_PN=torch.rand(8, 6))
        for step in range(3):
            training.step, key = step, (seed, step)
            training._batch(groups)
            training._batch(groups)
    assert len({tuple(places) for places in chosen.values()}) == len(chosen) == 6


# Points

EVERY = {"step", "rollouts", "tokens", "seconds", "kl"}
AFTER_AN_UPDATE = {
    "train/avg",
    "entropy",
    "response_length",
    "truncated",
    "zero_variance",
    "grad_norm",
    "logprob_gap",
    "loss",
    "learning_rate",
    "rollouts_per_second",
    "tokens_per_second",
}


def test_what_stands_in_every_point(whole: Callable[[str], Path]):
    folder = whole("isocompute-easy")
    found = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    assert [point["step"] for point in found] == [0, 1, 2, 4]
    metrics = {f"{name}@{k}{end}" for name in ("avg", "best", "worst") for k in (1, 4) for end in ("", "/error")}
    for point in found:
        assert set(point) >= EVERY | metrics | {"val/response_length", "val/truncated"}
        assert (point["step"] == 0) or set(point) >= AFTER_AN_UPDATE
        assert point["rollouts"] == 32 * point["step"]
        assert all(np.isfinite(value) for value in point.values())
    assert all(point["logprob_gap"] < 1e-5 for point in found[1:])
    assert all(0 < point["entropy"] < np.log(29) and point["grad_norm"] > 0 for point in found[1:])


def test_kl_is_zero_before_training_and_grows():
    recipe, often = {"kl_coef": 0.0, "learning_rate": 3e-3}, {"points": 40}
    training = make_training(recipe=recipe, update_steps=6, evaluation=often)
    found = [training.evaluate()["kl"]]
    for _ in range(6):
        assert training.update()
        found.append(training.evaluate()["kl"])
    assert found[0] == 0.0
    assert found[1] < 1e-7  # rounding: the batch of the first update was sampled by the base
    assert all(kl > 1e-4 for kl in found[3:])
    assert max(found) < 1.0


def test_pass_rates_give_the_metrics(whole: Callable[[str], Path]):
    folder = whole("isocompute-easy")
    rows = rates(folder)
    for point in points(folder):
        (row,) = (r for r in rows if r["set"] == "validation" and r["step"] == point["step"])
        correct_P, samples_P = np.array(row["correct"]), np.full(12, row["samples"])
        assert len(correct_P) == 12 and row["samples"] == 4
        for name, metric in (("avg", avg_at_k), ("best", best_at_k), ("worst", worst_at_k)):
            for k in (1, 4):
                assert point[f"{name}@{k}"] == pytest.approx(float(metric(correct_P, samples_P, k=k).mean()), rel=1e-5)
        assert point["val/zero_pass"] == pytest.approx(row["correct"].count(0) / 12, rel=1e-5)
    assert points(folder)[0]["val/zero_pass"] > 0
    trained = [r for r in rows if r["set"] == "train"]
    assert sum(sum(r["samples"]) for r in trained) == 4 * 32
    # The mean reward of the updates since the last point, from the same counts.
    for row, point in zip(trained, points(folder)[1:], strict=True):
        assert sum(row["correct"]) / sum(row["samples"]) == pytest.approx(point["train/avg"], rel=1e-5)


def test_sets_out_of_distribution_are_measured_beside(tmp_path: Path):
    cell = make_cell(update_steps=1, problems={"out_of_distribution": {"longer": "chain:6"}})
    folder = run(cell, tmp_path)
    assert all(f"longer/avg@4{end}" in point for point in points(folder) for end in ("", "/error"))
    assert {row["set"] for row in rates(folder)} == {"validation", "longer", "train"}


# Resuming


@pytest.mark.parametrize("name", RECIPE_CASES)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(
    name: str, whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reference = whole(name)
    each = 6 if name == "decoupled" else 4
    # Stopped before the first update, after the first, and after two more.
    folder = run(make_cell(**RECIPE_CASES[name]), tmp_path / "stopped", stops=(0, 8 * each, 16 * each))
    assert points(folder) == points(reference)
    assert (folder / "pass_rates.jsonl").read_bytes() == (reference / "pass_rates.jsonl").read_bytes()
    assert distance(weights(folder), weights(reference)) == 0.0
    checkpoint_every_update(monkeypatch)
    folder = run(make_cell(**RECIPE_CASES[name]), tmp_path / "checkpoints")
    assert points(folder) == points(reference)
    assert distance(weights(folder), weights(reference)) == 0.0


class StopAfter:
    """Asks to stop once it was asked so often, also while responses are sampled."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def stopping(self) -> bool:
        self.left -= 1
        return self.left < 0

    def advanced(self, rollouts: int) -> None:
        pass


@pytest.mark.parametrize("name", RECIPE_CASES)
def test_a_run_stopped_between_decode_steps_is_the_uninterrupted_one(
    name: str, whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Again and again, within batches and within evaluations; responses in flight begin again."""
    monkeypatch.setattr(training_module, "_POLL_SECONDS", -1.0)
    cell, legs = make_cell(**RECIPE_CASES[name]), 0
    first, more = (1, 2) if name == "captured" else (3, 8)  # an engine that asks less often
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*responses in flight begin again")
        while not LmEngine().run(cell, tmp_path, StopAfter(first + more * (legs % 4))):
            legs += 1
            assert legs < 60
    assert legs >= 3
    assert points(tmp_path) == points(whole(name))
    for file in ("pass_rates.jsonl", "samples.jsonl"):
        assert (tmp_path / file).read_bytes() == (whole(name) / file).read_bytes()
    assert distance(weights(tmp_path), weights(whole(name))) == 0.0


def test_a_stop_within_an_evaluation(tmp_path: Path, whole: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    """The runner's wish is seen between decode steps; the point is not there yet, and comes when the run goes on."""
    monkeypatch.setattr(training_module, "_POLL_SECONDS", -1.0)
    control, seen = Control(), []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))
        if what == "evaluation at update 1" and done:
            control.stop_after = 0

    cell = make_cell()
    assert not LmEngine(on_progress=progress).run(cell, tmp_path, control)
    assert [point["step"] for point in points(tmp_path)] == [0]
    assert {what for what, _, _ in seen} == {"evaluation at update 0", "evaluation at update 1"}
    assert seen[0] == ("evaluation at update 0", 0, 12) and 0 < seen[-1][1] < 12
    run(cell, tmp_path)
    assert points(tmp_path) == points(whole("isocompute-easy"))


# Checkpoints


def test_a_state_does_not_change_any_more():
    """It is written while the run goes on."""
    training = make_training(recipe={"name": "dapo", "no_positive_resampling": 0.7, "zero_variance_filter": "refill"})
    assert training.update()
    arrays, meta = training.state()
    kept, meta_kept = {name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(meta))
    assert training.update()
    training.evaluate()
    assert all(np.array_equal(arrays[name], kept[name]) for name in kept)
    assert json.loads(json.dumps(meta)) == meta_kept


def test_a_checkpoint_is_whole_when_the_run_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However slowly it is written; updates go on meanwhile."""
    checkpoint_every_update(monkeypatch)
    inner, updates = np.savez, []

    def slow(file: Any, **arrays: Any) -> None:
        updates.append(json.loads(bytes(arrays["__meta__"]))["step"])
        time.sleep(0.05)
        inner(file, **arrays)

    monkeypatch.setattr(np, "savez", slow)
    assert not LmEngine().run(make_cell(), tmp_path, Control(64))
    meta = json.loads(bytes(np.load(tmp_path / "checkpoint.npz")["__meta__"]))
    assert meta["step"] == updates[-1] == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    for always in (False, True):  # the checkpoint of the stop itself; one on the way
        if always:
            checkpoint_every_update(monkeypatch)
        with pytest.raises(InputError, match=r"checkpoint\.npz: cannot be written \(No space left on device\)"):
            LmEngine().run(make_cell(), tmp_path / str(always), Control(None if always else 64))


OLDER: dict[str, dict[str, Any]] = {
    "on-policy": RECIPE_CASES["isocompute-easy"],
    "off-policy": {"recipe": {"name": "cispo", "off_policy_steps": 3}},
    "pipeline": {"recipe": {"name": "cispo", "pipeline_steps": 2}, "problems": {"source": "chain:1-8"}},
}


def as_version_0_1(path: Path, grade: Callable[..., list[float]]) -> None:
    """Rewrite a checkpoint as version 0.1 wrote it: sums as arrays, and other arrays for groups under way."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(bytes(arrays.pop("__meta__")))
    sums = np.array([meta["sums"][name] for name in training_module.MEANS])
    arrays |= {"sums": sums[:7], "more": sums[7:]}
    drawn, counted = meta["drawn"], set(meta.pop("counted"))
    meta = {name: value for name, value in meta.items() if name in KEPT} | {"sampled": 4 * drawn}
    table = arrays.pop("flight/groups")
    stored = {name.removeprefix("flight/"): arrays.pop(name) for name in list(arrays) if name.startswith("flight/")}
    sampled_G = table[:, 3].astype(bool)
    if stored:
        whole = zip(table[sampled_G], *(stored[x].reshape(-1, 4, *stored[x].shape[1:]) for x in ROWS), strict=True)
        for (number, problem, _, _), responses, lengths, stopped in whole:  # 0.1 graded groups when they were sampled
            if number in counted:
                continue
            rewards = grade(problem, [row[:n].tolist() for row, n in zip(responses, lengths, strict=True)], stopped)
            for name, value in (("right", sum(rewards)), ("right_since", sum(rewards)), ("seen", 4), ("seen_since", 4)):
                arrays[name][problem] += int(value)
    if stored and "versions_BT" not in stored:
        arrays["waiting/index_P"] = table[:, 1]
        arrays["waiting/mask_BT"] = np.arange(stored["responses_BT"].shape[1]) < stored.pop("lengths_B")[:, None]
        arrays["waiting/versions_BT"] = np.full(stored["responses_BT"].shape, table[0, 2])
        arrays |= {f"waiting/{name}": array for name, array in stored.items()}
    elif len(table):
        meta |= {"drawn": drawn, "restarted": 0}
        rows_B = sampled_G.repeat(4)
        nothing = {name: np.zeros((0, 1)[: 2 if name.endswith("_BT") else 1], dtype=int) for name in FLIGHT}
        for name, array in (nothing | stored).items():
            arrays[f"flight/{name}"] = np.zeros((len(rows_B), *array.shape[1:]), dtype=array.dtype)
            arrays[f"flight/{name}"][rows_B] = array
        arrays |= {"flight/groups": table[:, :3], "flight/ended_B": rows_B}
        arrays["flight/forced_BT"] = np.zeros(arrays["flight/responses_BT"].shape, dtype=np.bool_)
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, __meta__=text, **arrays)


KEPT = {
    *("sampler_at", "step", "rollouts", "tokens", "seconds", "evaluated", "last_evaluated", "oldest", "dropped"),
    *("points_bytes", "pass_rates_bytes"),
}
ROWS = ("responses_BT", "lengths_B", "stopped_B")
FLIGHT = (*ROWS, "logprobs_BT", "versions_BT")


@pytest.mark.parametrize("stop", [64, 96])
@pytest.mark.parametrize("name", OLDER)
@pytest.mark.filterwarnings("ignore:.*in flight begin again")
def test_a_checkpoint_of_version_0_1(name: str, stop: int, tmp_path: Path):
    """It goes on as today's checkpoint of the same state does; there were no samples to read then."""
    cell, grade = make_cell(**OLDER[name], update_steps=6), make_training(**OLDER[name]).tasks.train.grade
    assert not LmEngine().run(cell, tmp_path / "new", Control(stop))
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    (tmp_path / "old" / "samples.jsonl").unlink()
    as_version_0_1(tmp_path / "old" / "checkpoint.npz", grade)
    new, old = (run(cell, tmp_path / which) for which in ("new", "old"))
    assert points(old) == points(new)
    assert (old / "pass_rates.jsonl").read_bytes() == (new / "pass_rates.jsonl").read_bytes()
    assert distance(weights(old), weights(new)) == 0.0


def test_what_was_appended_after_the_checkpoint_is_made_again(whole: Callable[[str], Path], tmp_path: Path):
    cell = make_cell()
    tmp_path.mkdir(exist_ok=True)
    assert not LmEngine().run(cell, tmp_path, Control(64))
    # A run that is killed after its checkpoint leaves such lines.
    for name in ("points.jsonl", "pass_rates.jsonl", "samples.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"step": 99}\n{"torn')
    run(cell, tmp_path)
    assert points(tmp_path) == points(whole("isocompute-easy"))
    for name in ("pass_rates.jsonl", "samples.jsonl"):
        assert (tmp_path / name).read_bytes() == (whole("isocompute-easy") / name).read_bytes()


def test_a_run_ends_when_no_problem_is_left_stopped_or_not(tmp_path: Path):
    changes: dict[str, Any] = {
        "update_steps": 50,
        "problems": {"source": "chain:1", "size": 8},
        "recipe": {"no_positive_resampling": 0.01},
        "evaluation": {"points": 2},
    }
    reference = run(make_cell(**changes), tmp_path / "whole")
    last = points(reference)[-1]
    assert last["retired"] == 8 and last["step"] < 50 and last["kl"] > 0
    folder = run(make_cell(**changes), tmp_path / "stopped", stops=(last["rollouts"],))
    assert points(folder) == points(reference)


# What must not matter


@pytest.mark.parametrize("recipe", [{}, {"name": "ppo"}, {"name": "gspo", "updates_per_batch": 2}])
def test_micro_batches_change_nothing_but_rounding(recipe: dict[str, Any]):
    def trained(**sizes: int) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
        plain = {"optimizer": "sgd", "learning_rate": 0.1}
        training = make_training(problems_per_batch=4, recipe={**recipe, **plain}, engine=sizes)
        assert training.update()
        assert training._last is not None
        tokens = training._last.responses_BT.clone()
        assert training.update()
        means = {name: value for name, value in training._since_last().items() if name not in CLOCK}
        return tokens, dict(training.decoder.state_dict()), means

    tokens, reference, means = trained()
    for sizes in ({"micro_batch": 1}, {"micro_batch": 7}, {"sample_batch": 4}, {"sample_batch": 9, "micro_batch": 3}):
        other_tokens, other, other_means = trained(**sizes)
        assert torch.equal(other_tokens, tokens)
        assert distance(other, reference) < 2e-6
        assert other_means == pytest.approx(means, rel=1e-3, abs=1e-5)
    assert distance(reference, dict(make_training().decoder.state_dict())) > 1e-4


def test_evaluating_more_or_less_often_trains_the_same_weights(whole: Callable[[str], Path], tmp_path: Path):
    often = make_cell(evaluation={"points": 10, "samples": 9})
    folder = run(often, tmp_path)
    assert len(points(folder)) == 5
    assert distance(weights(folder), weights(whole("isocompute-easy"))) == 0.0


def test_seeds_differ_and_repeat(tmp_path: Path, whole: Callable[[str], Path]):
    again, other = run(make_cell(), tmp_path / "again"), run(make_cell(seed=1), tmp_path / "other")
    assert points(again) == points(whole("isocompute-easy"))
    assert distance(weights(other), weights(again)) > 0.0


# Recipes


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_trains(name: str):
    training = make_training(recipe={"name": name})
    base = {key: value.clone() for key, value in training.decoder.state_dict().items()}
    assert training.update() and training.update()
    moved = distance(dict(training.decoder.state_dict()), base)
    assert 1e-6 < moved < 1e-2
    assert distance(dict(training.base.decoder.state_dict()), base) == 0.0  # the base stays the base
    means = training._since_last()
    assert all(np.isfinite(value) for value in means.values()) and means["kl"] > 0


def test_sixteen_bits_train_on_masters():
    training = make_training(engine={"dtype": "bfloat16"})
    before = [master.clone() for master in training.optimizer.masters]
    assert training.update()
    assert {p.dtype for p in training.decoder.parameters()} == {torch.bfloat16}
    assert all(master.dtype == torch.float32 for master in training.optimizer.masters)
    assert any(not torch.equal(a, b) for a, b in zip(before, training.optimizer.masters, strict=True))


@pytest.mark.parametrize(("cost", "until_next"), [(0.1, 20.0), (6.0, 200.0)])
def test_checkpoints_take_at_most_3_percent_of_the_time(
    cost: float, until_next: float, monkeypatch: pytest.MonkeyPatch
):
    """A costly one moves the next one away; a cheap one is repeated every 20 seconds."""
    training, clock = make_training(), [0.0]

    class Slow:
        def checkpoint(self, *_: Any) -> None:
            clock[0] += cost

    monkeypatch.setattr(training_module.time, "monotonic", lambda: clock[0])
    training._save(Slow())
    assert training._save_at == pytest.approx(cost + until_next)
