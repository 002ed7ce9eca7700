from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isocompute.core.allocation import evaluation_steps
from isocompute.core.errors import InputError
from isocompute.rl import loop as training_module
from isocompute.rl.engine import LmEngine
from isocompute.rl.loop import Training
from isocompute.rl.model.decoder import Cache
from isocompute.rl.rollout import pool as pool_module
from isocompute.rl.rollout.eager import SamplingSettings, sample
from isocompute.rl.rollout.pipeline import Pipeline
from isocompute.rl.rollout.pool import Pool, Records
from tests.rl.cells import Control, distance, make_cell, make_training, points, run, weights

PIPELINE = {"recipe": {"name": "cispo", "pipeline_steps": 2}, "problems": {"source": "chain:1-8", "size": 64}}


# The pool


def make_pool(training: Training, *, rows: int, slots: int, temperature: float = 1.0) -> Pool:
    where = training.base.device
    sampling = SamplingSettings(max_new_tokens=12, temperature=temperature, stop_tokens=training.base.stop_tokens)
    records = Records.empty(rows, 12, where)
    return Pool(training.decoder, sampling, records, slots=slots, prompt_tokens=40, seed=5)


def test_a_pool_samples_what_the_batched_sampler_samples():
    """Thirty sequences through ten slots, entering and leaving at any time: tokens are those of one plain batch."""
    training = make_training(problems={"source": "chain:1-8", "size": 64})
    prompts = list(training.tasks.train.prompts[:30])
    pool = make_pool(training, rows=30, slots=10)
    waiting = list(range(30))
    while waiting or pool.in_flight:
        while waiting and pool.free:
            row = waiting.pop(0)
            pool.add(prompts[row], torch.tensor([row]), torch.tensor([row]))
        pool.tick(0)
    mine = pool.records.rollouts(torch.arange(30), prompts, forced=False)
    plain = sample(training.decoder, prompts, pool.settings, seed=5)
    assert torch.equal(mine.mask_BT, plain.mask_BT)
    assert torch.equal(mine.responses_BT * mine.mask_BT, plain.responses_BT * plain.mask_BT)
    assert torch.equal(mine.stopped_B, plain.stopped_B)
    torch.testing.assert_close(mine.logprobs_BT, plain.logprobs_BT, atol=1e-5, rtol=1e-4)


def test_a_sequence_that_lives_through_an_update_has_log_probs_of_both_policies():
    training = make_training(problems={"source": "chain:6-8", "size": 64})
    prompt = list(training.tasks.train.prompts[0])
    pool = make_pool(training, rows=1, slots=2)
    pool.add(prompt, torch.tensor([0]), torch.tensor([0]))
    before = {name: value.clone() for name, value in training.decoder.state_dict().items()}
    for _ in range(3):
        assert not len(pool.tick(7))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in training.decoder.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    after = {name: value.clone() for name, value in training.decoder.state_dict().items()}
    while pool.in_flight:
        pool.tick(8)
    rollouts = pool.records.rollouts(torch.tensor([0]), [prompt], forced=False)
    length = int(rollouts.lengths_B[0])
    assert length > 4
    assert rollouts.versions_BT is not None
    assert rollouts.versions_BT[0, :length].tolist() == [7] * 3 + [8] * (length - 3)
    # Token by token with a plain cache: old weights for three tokens, then new ones on the old keys and values.
    decoder = training.decoder
    decoder.load_state_dict(before)
    with torch.no_grad():
        cache = Cache.empty(decoder.config, 1, 60, decoder.embed_tokens.weight)
        read = prompt
        for step, token in enumerate(rollouts.responses_BT[0, :length].tolist()):
            if step == 3:  # the third token itself has not been read yet: the new weights read it
                decoder.load_state_dict(after)
            hidden = decoder.forward(torch.tensor([read]), cache=cache)
            expected = torch.log_softmax(decoder.logits(hidden[:, -1]), dim=-1)[0, token]
            assert float(rollouts.logprobs_BT[0, step]) == pytest.approx(float(expected), abs=2e-5)
            read = [token]


# Training


def make_pipeline(**changes: Any) -> Training:
    training = make_training(**{"update_steps": 100, **changes})
    if not isinstance(training.source, Pipeline):  # k = 0, which a run never needs a pool for
        sampling = training._sampling(training.recipe.temperature)
        parts = (training.cell, training.recipe, training.tasks.train, training.decoder, sampling)
        training.source = Pipeline(*parts, sample_batch=training.sizes.sample_batch)
    return training


def test_a_schedule_by_hand(monkeypatch: pytest.MonkeyPatch):
    """One problem a batch, two rollouts each, two steps of slack, four slots: every token's version follows on paper.

    lengths: group 0: 2, 3; group 1: 6, 2; group 2: 1, 1; group 3: 2, 2; group 4: 1, 1

    tick 1  groups 0 and 1 start at version 0
    tick 2  two rows end; tick 3 begins with group 2 in their slots, still at version 0
    tick 3  groups 0 and 2 are whole: update 0 takes group 0, update 1 at once group 2; group 1 is due at update 2
    tick 4  group 3 starts at version 2
    tick 5  group 3 is whole, but taking it would make group 1 too old: the trainer waits
    tick 6  group 4 starts; group 1 is whole: update 2 takes it, update 3 at once group 3
    """
    lengths = {0: 2, 1: 3, 2: 6, 3: 2, 4: 1, 5: 1, 6: 2, 7: 2, 8: 1, 9: 1}
    training = make_pipeline(
        problems_per_batch=1,
        rollouts_per_problem=2,
        recipe={"name": "cispo", "pipeline_steps": 2},
        problems={"source": "chain:1-8", "size": 64},
        engine={"slots": 4},
    )
    pool, stop = training.source.pool, training.base.stop_tokens[0]

    def scripted(logits_AV: Tensor, _: SamplingSettings, __: Tensor) -> tuple[Tensor, Tensor]:
        numbers, steps = pool._numbers_A.tolist(), pool._steps_A.tolist()
        ends = [step + 1 == lengths.get(number, 2) for number, step in zip(numbers, steps, strict=True)]
        tokens_A = torch.tensor([stop if end else 7 for end in ends])
        return tokens_A, torch.log_softmax(logits_AV, dim=-1).gather(1, tokens_A[:, None])[:, 0]

    monkeypatch.setattr(pool_module, "draw", scripted)
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
        [[0], [0]],
        [[0, 0, 0, 2, 2, 2], [0, 0]],
        [[2, 2], [2, 2]],
    ]
    assert training.oldest == 2


def test_no_steps_of_slack_is_the_synchronous_run(tmp_path: Path):
    """`pipeline_steps = 0` is the on-policy engine itself; the pool's own machinery at k = 0 agrees with it too."""
    plain = run(make_cell(recipe={"name": "cispo"}), tmp_path / "plain")
    zero = run(make_cell(recipe={"name": "cispo", "pipeline_steps": 0}), tmp_path / "zero")
    assert points(zero) == points(plain) and distance(weights(zero), weights(plain)) == 0.0
    # Adam would blow up the rounding of tiny gradients; batches of 10 of 24 problems span epochs.
    same = {"recipe": {"name": "cispo", "optimizer": "sgd", "learning_rate": 0.1}, "problems_per_batch": 10}
    synchronous, pool = make_training(**same, update_steps=100), make_pipeline(**same)
    for _ in range(5):
        assert synchronous.update() and pool.update()
    assert (pool.oldest, pool.rollouts, pool.tokens) == (0, synchronous.rollouts, synchronous.tokens)
    assert distance(pool.decoder.state_dict(), synchronous.decoder.state_dict()) < 1e-5


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


def test_a_stop_loses_unfinished_responses_alone_and_says_how_many(tmp_path: Path):
    training = make_pipeline(**PIPELINE)
    for _ in range(3):
        assert training.update()
    for _ in range(3):
        assert training.source._decode(training.step)
    whole = {
        (group.number, member): training.source.records.responses_BT[row].tolist()
        for group in training.source.ledger
        for member in range(4)
        if training.source.records.ended_B[row := group.seat * 4 + member]
    }
    in_flight = training.source.pool.in_flight
    assert whole and in_flight
    again = make_pipeline(**PIPELINE)
    arrays, meta = training.state()
    again.restore(arrays, dict(meta))
    assert again.source.restarted == in_flight == again.source.pool.in_flight
    kept = {
        (group.number, member): again.source.records.responses_BT[row].tolist()
        for group in again.source.ledger
        for member in range(4)
        if again.source.records.ended_B[row := group.seat * 4 + member]
    }
    assert kept == whole
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


def test_a_pipeline_does_not_depend_on_how_many_rows_are_sampled_at_a_time(tmp_path: Path):
    def trained(name: str, sample_batch: int | None) -> list[dict[str, Any]]:
        cell = make_cell(**PIPELINE, update_steps=5, engine={"sample_batch": sample_batch})
        return points(run(cell, tmp_path / name))

    whole, parts = trained("whole", None), trained("parts", 8)
    assert whole[-1]["staleness"] > 0
    for mine, theirs in zip(whole, parts, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_a_pipeline_goes_on_with_fewer_rows_at_a_time(tmp_path: Path):
    assert not LmEngine().run(make_cell(**PIPELINE, update_steps=5), tmp_path, Control(64))
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
    monkeypatch.setattr(training_module, "_CHECKPOINT_SECONDS", 0.0)
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
    assert json.loads((folder / "finished.json").read_text())["rollouts"] == last["rollouts"] == 2 * 4 * last["step"]


def test_nothing_is_begun_that_no_update_will_take():
    training = make_pipeline(**PIPELINE, update_steps=5)
    while training.step < 5:
        assert training.update()
    assert training.source.sampled == training.rollouts == 5 * 8 * 4 and not len(training.source.ledger)


@pytest.mark.parametrize("steps", [2, 8])
def test_all_that_is_sampled_is_counted_where_groups_are_refilled(steps: int):
    training = make_pipeline(recipe={"pipeline_steps": steps, "zero_variance_filter": "refill"}, update_steps=6)
    while training.step < 6:
        assert training.update()
    assert not len(training.source.ledger) and not training.source.pool.in_flight
    assert training.rollouts == training.source.sampled >= 6 * training.cell.batch_size


def test_two_groups_of_one_problem_are_both_counted(monkeypatch: pytest.MonkeyPatch):
    """Few problems and many groups: one problem ends twice in a tick, and its pass rate must know both."""
    training = make_pipeline(
        recipe={"name": "cispo", "pipeline_steps": 8, "no_positive_resampling": 1.0},
        problems={"size": 8, "source": "chain:8"},
    )
    judged = 0
    inner = training.source.grade

    def counting(index_P: Any, rollouts: Any) -> Any:
        nonlocal judged
        judged += len(rollouts)
        return inner(index_P, rollouts)

    monkeypatch.setattr(training.source, "grade", counting)
    for _ in range(12):
        assert training.update()
    assert training.source.problems.seen_P.sum() == judged == training.source.seen_P.sum()


def test_an_absurd_number_of_slots_is_named(tmp_path: Path):
    cell = make_cell(**PIPELINE, engine={"slots": 10**9})
    with pytest.raises(InputError, match=r"out of memory .* slots = 1000000000"):
        LmEngine().run(cell, tmp_path, Control())


def test_k_beyond_the_run_is_as_long_as_the_run():
    training = make_pipeline(**{**PIPELINE, "recipe": {"name": "cispo", "pipeline_steps": 10**9}}, update_steps=6)
    while training.step < 6:
        assert training.update()
    assert training.oldest <= 6
