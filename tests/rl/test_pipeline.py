"""PipelineRL-k: which groups an update takes, tokens of several policies, stopping and resuming in flight."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.core.allocation import evaluation_steps
from isocompute.rl.engine import LmEngine
from isocompute.rl.loop import Training
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout import eager as eager_module
from isocompute.rl.rollout.captured import CapturedEngine
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import SamplingSettings
from tests.rl.cells import (
    Control,
    checkpoint_every_update,
    count_graded,
    distance,
    make_cell,
    make_training,
    points,
    run,
    weights,
)
from tests.rl.models import requests

PIPELINE = {"recipe": {"name": "cispo", "pipeline_steps": 2}, "problems": {"source": "chain:1-8", "size": 64}}


class Cached:
    """Attention of one sequence, token by token, on the keys and values of all earlier ones."""

    def __init__(self) -> None:
        self.kv: dict[int, Tensor] = {}

    def __call__(self, layer: int, qkv_TEK: Tensor, heads: int) -> Tensor:
        q_THK, kv_TEK = qkv_TEK[:, :heads], qkv_TEK[:, heads:]
        if layer in self.kv:
            kv_TEK = torch.cat([self.kv[layer], kv_TEK])
        self.kv[layer] = kv_TEK
        seen = torch.ones(len(q_THK), len(kv_TEK), dtype=torch.bool).tril(len(kv_TEK) - len(q_THK))
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THK, *kv_TEK.chunk(2, dim=1)))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)


@pytest.mark.parametrize("make_engine", [EagerEngine, CapturedEngine])
def test_a_sequence_that_lives_through_an_update_has_log_probs_of_both_policies(
    make_engine: type[EagerEngine | CapturedEngine],
):
    training = make_training(problems={"source": "chain:6-8", "size": 64})
    before, after = training.base.decoder, training.decoder
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    prompt = list(training.tasks.train.prompts[0])
    engine = make_engine(before, SamplingSettings(24, keep_versions=True), rows=2, prompt_tokens=len(prompt))
    engine.load(before, 7)
    (group,) = requests([prompt], seed=5)
    engine.submit(group)
    for _ in range(3 if make_engine is EagerEngine else 1):
        assert not engine.step()
    engine.load(after, 8)
    finished = []
    while engine.busy:
        finished += engine.step()
    rollouts = finished[0].rollouts
    assert rollouts.versions_BT is not None
    versions = rollouts.versions_BT[0].tolist()
    older = versions.count(7)
    assert versions == [7] * older + [8] * (24 - older) and 0 < older < 24
    # Token by token: old weights for the first tokens, then new ones on the old keys and values.
    cache, read, position = Cached(), prompt, 0
    for step, token in enumerate(rollouts.responses_BT[0].tolist()):
        decoder: Decoder = before if step < older else after  # which reads the last token of the old weights
        with torch.no_grad():
            hidden_TD = decoder(torch.tensor(read), torch.arange(position, position + len(read)), cache)
            expected = torch.log_softmax(decoder.logits(hidden_TD[-1]), dim=-1)[token]
        assert float(rollouts.logprobs_BT[0, step]) == pytest.approx(float(expected), abs=1e-4)
        position, read = position + len(read), [token]


# Training


def make_pipeline(**changes: Any) -> Training:
    return make_training(**{"update_steps": 100, **changes})


def test_a_schedule_by_hand(monkeypatch: pytest.MonkeyPatch):
    """One problem a batch, two rollouts each, two steps of slack, two groups in flight: versions follow on paper.

    lengths: group 0: 2, 3; group 1: 7, 2; group 2: 1, 1; group 3: 2, 2; group 4: 1, 1

    step 1  groups 0 and 1 start at version 0
    step 3  group 0 is complete; group 2 starts in its place, still at version 0; update 0 takes group 0
    step 4  the first tokens of group 2 are its last; group 3 starts at version 1; update 1 takes group 2
    step 6  group 3 is complete, but taking it would make group 1 too old: the trainer waits; group 4 starts
    step 7  group 1 is complete: update 2 takes it, update 3 at once group 3
    """
    lengths = {0: 2, 1: 3, 2: 7, 3: 2, 4: 1, 5: 1, 6: 2, 7: 2, 8: 1, 9: 1}
    training = make_pipeline(
        problems_per_batch=1,
        rollouts_per_problem=2,
        recipe={"name": "cispo", "pipeline_steps": 2},
        problems={"source": "chain:1-8", "size": 64},
        engine={"slots": 4},
    )
    engine, stop = training.engine, training.base.stop_tokens[0]
    assert isinstance(engine, EagerEngine)

    def scripted(logits_AV: Tensor, _: Tensor, __: Tensor) -> tuple[Tensor, Tensor]:
        tokens = []
        for row in engine._active:
            number = 2 * row.group.key + row.group.streams.tolist().index(row.stream)
            tokens.append(stop if len(row.tokens) + 1 == lengths.get(number, 2) else 7)
        tokens_A = torch.tensor(tokens)
        return tokens_A, torch.log_softmax(logits_AV, dim=-1).gather(1, tokens_A[:, None])[:, 0]

    monkeypatch.setattr(eager_module, "draw", scripted)
    trained: list[list[list[int]]] = []
    inner = training._batch

    def keep(groups: Any) -> Any:
        versions, mask = groups.rollouts.versions_BT, groups.rollouts.mask_BT
        trained.append([row[there].tolist() for row, there in zip(versions, mask, strict=True)])
        return inner(groups)

    monkeypatch.setattr(training, "_batch", keep)
    for _ in range(4):
        assert training.update()
    assert trained == [
        [[0, 0], [0, 0, 0]],
        [[1], [1]],
        [[0, 0, 0, 1, 2, 2, 2], [0, 0]],
        [[2, 2], [2, 2]],
    ]
    assert training.oldest == 2


def test_no_steps_of_slack_is_the_synchronous_run(tmp_path: Path):
    plain = run(make_cell(recipe={"name": "cispo"}), tmp_path / "plain")
    zero = run(make_cell(recipe={"name": "cispo", "pipeline_steps": 0}), tmp_path / "zero")
    assert points(zero) == points(plain) and distance(weights(zero), weights(plain)) == 0.0
    assert all(point["staleness"] == 0.0 for point in points(zero)[1:])


@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("steps", [1, 2, 8])
def test_no_token_is_older_than_k_updates(steps: int, engine: str):
    training = make_pipeline(
        recipe={"name": "cispo", "pipeline_steps": steps},
        problems={"source": "chain:1-8", "size": 64},
        engine={"slots": 8 * 4 * (steps + 1), "rollout": engine},
        update_steps=14,
    )
    while training.step < 14:
        assert training.update()
    assert 0 < training.oldest <= steps
    assert training.rollouts == 14 * 8 * 4 and not training.engine.busy


def test_a_pipeline_runs_as_a_cell(tmp_path: Path):
    folder = run(make_cell(**PIPELINE, update_steps=10), tmp_path)
    last = points(folder)[-1]
    assert last["rollouts"] == 8 * 4 * 10
    assert 0 < last["staleness"] <= 2 and 0 < last["sampler_busy"] <= 1
    assert {"truncated", "interrupted"} <= last.keys()


def test_a_pipeline_gives_the_same_every_time(tmp_path: Path):
    cell = make_cell(**PIPELINE, update_steps=6, engine={"slots": 64})
    first, second = run(cell, tmp_path / "a"), run(cell, tmp_path / "b")
    assert points(first) == points(second) and distance(weights(first), weights(second)) == 0.0


def sampled_groups(training: Training) -> dict[int, list[list[int]]]:
    """The responses of the groups under way that are complete."""
    whole = [(group.number, group.rollouts) for group in training.source.ledger if group.rollouts is not None]
    return {
        number: [row[there].tolist() for row, there in zip(r.responses_BT, r.mask_BT, strict=True)]
        for number, r in whole
    }


def test_a_stop_loses_unfinished_responses_alone_and_says_how_many(tmp_path: Path):
    training = make_pipeline(**PIPELINE)
    for _ in range(3):
        assert training.update()
    training.source._admit(training.step)
    while not (kept := sampled_groups(training)):
        for finished in training.engine.step():
            training.source.take(finished)
    in_flight = len(training.source.ledger) - len(kept)
    assert in_flight
    again = make_pipeline(**PIPELINE)
    arrays, meta = training.state()
    again.restore(arrays, json.loads(json.dumps(meta)))
    assert again.source.restarted == again.engine.busy == 4 * in_flight
    assert sampled_groups(again) == kept
    assert [g.version for g in again.source.ledger] == [g.version for g in training.source.ledger]
    for _ in range(8):
        assert again.update()
    assert again.oldest <= 2

    cell, folder = make_cell(**PIPELINE, update_steps=8), tmp_path / "cell"
    folder.mkdir()
    assert not LmEngine().run(cell, folder, Control(64))
    with pytest.warns(UserWarning, match=r"\d+ responses in flight begin again"):
        assert LmEngine().run(cell, folder, Control())
    rows = points(folder)
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows}) and rows[-1]["rollouts"] == 256
    assert '"restarted"' in (folder / "finished.json").read_text()


def test_a_pipeline_with_fewer_rows_than_it_could_use(tmp_path: Path):
    """Groups wait in the engine; the bound on staleness holds."""
    found = points(run(make_cell(**PIPELINE, update_steps=5, engine={"sample_batch": 8}), tmp_path))
    assert found[-1]["rollouts"] == 5 * 8 * 4 and 0 <= found[-1]["staleness"] <= 2


def test_a_pipeline_goes_on_with_fewer_rows_at_a_time(tmp_path: Path):
    assert not LmEngine().run(make_cell(**PIPELINE, update_steps=5), tmp_path, Control(96))
    fewer = make_cell(**PIPELINE, update_steps=5, engine={"sample_batch": 4})
    with pytest.warns(UserWarning, match="in flight begin again"):
        assert LmEngine().run(fewer, tmp_path, Control())
    assert points(tmp_path)[-1]["rollouts"] == 5 * 8 * 4


def test_every_stop_names_the_responses_it_cost(tmp_path: Path):
    """Stopped twice: each resumption says its own number, the summary their sum."""
    cell = make_cell(**PIPELINE, update_steps=8)
    assert not LmEngine().run(cell, tmp_path, Control(64))
    said = []
    for control in (Control(64), Control()):
        with pytest.warns(UserWarning, match="in flight begin again") as caught:
            LmEngine().run(cell, tmp_path, control)
        (warning,) = caught
        said.append(int(re.findall(r"(\d+) responses in flight", str(warning.message))[0]))
    assert min(said) > 0
    assert json.loads((tmp_path / "finished.json").read_text())["restarted"] == sum(said)


def test_a_killed_pipeline_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No goodbye: the state is written on the way, then everything after it is lost."""
    cell = make_cell(**PIPELINE, update_steps=8)
    checkpoint_every_update(monkeypatch)
    inner, count = Training.update, iter(range(100))

    def dies(self: Training) -> bool:
        if next(count) == 4:
            raise KeyboardInterrupt
        return inner(self)

    monkeypatch.setattr(Training, "update", dies)
    with pytest.raises(KeyboardInterrupt):
        LmEngine().run(cell, tmp_path, Control())
    monkeypatch.setattr(Training, "update", inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert LmEngine().run(cell, tmp_path, Control())
    assert [row["step"] for row in points(tmp_path)][-1] == 8


@pytest.mark.parametrize("steps", [0, 2])
def test_a_run_ends_when_every_problem_is_retired(steps: int, tmp_path: Path):
    recipe = {"name": "cispo", "pipeline_steps": steps, "no_positive_resampling": 0.01}
    problems = {"source": "chain:very-easy", "size": 12}
    folder = run(make_cell(recipe=recipe, problems=problems, update_steps=400), tmp_path)
    text = (folder / "finished.json").read_text()
    assert "every problem is retired after" in text
    assert points(folder)[-1]["retired"] == 12


def test_groups_under_way_when_the_last_problem_is_retired_are_trained_on_before_the_last_look(tmp_path: Path):
    """Nine batches are in flight when nothing is left to draw: one evaluation after them, not one after each."""
    recipe = {"name": "cispo", "pipeline_steps": 8, "no_positive_resampling": 0.01}
    problems = {"source": "chain:very-easy", "size": 12}
    cell = make_cell(
        problems_per_batch=2, recipe=recipe, problems=problems, update_steps=400, engine={"slots": 2 * 4 * 9}
    )
    folder = run(cell, tmp_path)
    *before, last = points(folder)
    assert {row["step"] for row in before} <= set(evaluation_steps(400, 3).tolist())
    assert [row["step"] for row in points(folder) if row.get("retired") == 12] == [last["step"]]
    assert json.loads((folder / "finished.json").read_text())["rollouts"] == last["rollouts"]
    assert 2 * 4 * (last["step"] - 1) < last["rollouts"] <= 2 * 4 * last["step"]  # the last batch may be half of one


def test_nothing_is_begun_that_no_update_will_take():
    training = make_pipeline(**PIPELINE, update_steps=5)
    while training.step < 5:
        assert training.update()
    assert 4 * training.source.started == training.rollouts == 5 * 8 * 4 and not len(training.source.ledger)


@pytest.mark.parametrize("steps", [2, 8])
def test_all_that_is_sampled_is_counted_where_groups_are_refilled(steps: int):
    training = make_pipeline(recipe={"pipeline_steps": steps, "zero_variance_filter": "refill"}, update_steps=6)
    while training.step < 6:
        assert training.update()
    assert not len(training.source.ledger) and not training.engine.busy
    assert training.rollouts == 4 * training.source.started >= 6 * training.cell.batch_size


def test_two_groups_of_one_problem_are_both_counted(monkeypatch: pytest.MonkeyPatch):
    """Few problems and many groups: one problem ends twice in a tick, and its pass rate must know both."""
    training = make_pipeline(
        recipe={"name": "cispo", "pipeline_steps": 8, "no_positive_resampling": 1.0},
        problems={"size": 8, "source": "chain:8"},
    )
    graded = count_graded(monkeypatch, problems=8)
    for _ in range(12):
        assert training.update()
    taken = sum(rows for rows, _ in graded) - 4 * len(sampled_groups(training))
    assert training.source.problems.seen_P.sum() == taken == training.source.seen_P.sum()


def test_more_slots_than_a_pipeline_can_use_change_nothing(tmp_path: Path):
    def found(slots: int) -> list[dict[str, Any]]:
        folder = run(make_cell(**PIPELINE, engine={"slots": slots}), tmp_path / str(slots))
        return [{name: x for name, x in point.items() if name != "sampler_busy"} for point in points(folder)]

    assert found(10**9) == found(8 * 4 * 3)


def test_k_beyond_the_run_is_as_long_as_the_run():
    training = make_pipeline(**{**PIPELINE, "recipe": {"name": "cispo", "pipeline_steps": 10**9}}, update_steps=6)
    while training.step < 6:
        assert training.update()
    assert training.oldest <= 6
