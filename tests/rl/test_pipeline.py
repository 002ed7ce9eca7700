from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.rl import session as session_module
from isocompute.rl.cache import Cache
from isocompute.rl.engine import LmEngine
from isocompute.rl.pipeline import pool as pool_module
from isocompute.rl.pipeline.clock import run_clock
from isocompute.rl.pipeline.pool import Pool, Records
from isocompute.rl.pipeline.training import PipelineTraining
from isocompute.rl.sampler import SamplingSettings, sample
from isocompute.rl.spec import EngineSpec
from isocompute.rl.training import LmTraining
from isocompute.core.cell import evaluation_steps
from tests.rl.cells import Control, distance, make_cell, make_training, points, run, weights

PIPELINE = {"recipe": {"name": "cispo", "pipeline_steps": 2}, "problems": {"source": "chain:1-8", "size": 64}}


def made_lengths(seed: int, *, spread: float, longest: int) -> Iterator[int]:
    """Response lengths with a long tail."""
    rng = np.random.default_rng(seed)
    while True:
        drawn = np.exp(spread * rng.standard_normal(1024)) * 8
        yield from np.clip(drawn, 1, longest).astype(int).tolist()


# The schedule


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(0, 9),
    problems=st.integers(1, 5),
    rollouts=st.integers(1, 4),
    extra_slots=st.integers(0, 40),
    train_ticks=st.integers(0, 30),
    spread=st.floats(0, 2.5),
    seed=st.integers(0, 1000),
)
def test_no_token_is_older_than_k(
    steps: int, problems: int, rollouts: int, extra_slots: int, train_ticks: int, spread: float, seed: int
):
    timing = run_clock(
        made_lengths(seed, spread=spread, longest=400),
        problems_per_batch=problems,
        rollouts_per_problem=rollouts,
        steps=steps,
        updates=60,
        train_ticks=train_ticks,
        slots=rollouts + extra_slots,
    )
    assert timing.updates == 60
    assert timing.oldest <= steps


@pytest.mark.parametrize("steps", [1, 8])
def test_no_token_is_older_than_k_over_ten_thousand_updates(steps: int):
    timing = run_clock(
        made_lengths(3, spread=1.2, longest=200),
        problems_per_batch=2,
        rollouts_per_problem=2,
        steps=steps,
        updates=10_000,
        train_ticks=5,
    )
    assert timing.oldest == steps  # the promise is used to its end, and kept


@pytest.mark.parametrize(("spread", "longest"), [(0.5, 96), (0.8, 64), (1.2, 96)])
def test_eight_steps_keep_the_sampler_busy_where_waiting_for_the_longest_does_not(spread: float, longest: int):
    """As long as the longest response takes less than eight batches' time, which no schedule can get around."""

    def busy(steps: int) -> float:
        return run_clock(
            made_lengths(0, spread=spread, longest=longest),
            problems_per_batch=32,
            rollouts_per_problem=8,
            steps=steps,
            updates=300,
            train_ticks=8,
        ).busy

    assert busy(0) < 0.6
    assert busy(8) >= 0.95


def test_a_synchronous_clock_is_arithmetic():
    lengths = [3, 5, 2, 4]
    timing = run_clock(
        iter(lengths * 3), problems_per_batch=2, rollouts_per_problem=2, steps=0, updates=3, train_ticks=7
    )
    assert timing.ticks == 3 * (max(lengths) + 7)
    assert timing.busy == pytest.approx(sum(lengths) / (4 * (5 + 7)))


# The pool


def make_pool(training: LmTraining, *, rows: int, slots: int, native: bool, temperature: float = 1.0) -> Pool:
    where = training.model.device
    training.decoder.native = native
    sampling = SamplingSettings(max_new_tokens=12, temperature=temperature, stop_tokens=training.model.stop_tokens)
    records = Records.empty(rows, 12, where)
    return Pool(training.decoder, sampling, records, slots=slots, prompt_tokens=40, seed=5)


@pytest.mark.parametrize("native", [True, False])
def test_a_pool_samples_what_the_batched_sampler_samples(native: bool):
    """Thirty sequences through ten slots, entering and leaving at any time: tokens are those of one plain batch."""
    training = make_training(problems={"source": "chain:1-8", "size": 64})
    prompts = list(training.tasks.train.prompts[:30])
    pool = make_pool(training, rows=30, slots=10, native=native)
    waiting = list(range(30))
    while waiting or pool.in_flight:
        while waiting and pool.free:
            row = waiting.pop(0)
            pool.add(prompts[row], torch.tensor([row]), torch.tensor([row]))
        pool.tick(0)
    mine = pool.records.rollouts(torch.arange(30), prompts, forced=False)
    training.decoder.native = False
    plain = sample(training.decoder, prompts, pool.settings, seed=5)
    assert torch.equal(mine.mask_BT, plain.mask_BT)
    assert torch.equal(mine.responses_BT * mine.mask_BT, plain.responses_BT * plain.mask_BT)
    assert torch.equal(mine.stopped_B, plain.stopped_B)
    torch.testing.assert_close(mine.logprobs_BT, plain.logprobs_BT, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("native", [True, False])
def test_a_sequence_that_lives_through_an_update_has_log_probs_of_both_policies(native: bool):
    training = make_training(problems={"source": "chain:6-8", "size": 64})
    prompt = list(training.tasks.train.prompts[0])
    pool = make_pool(training, rows=1, slots=2, native=native)
    pool.add(prompt, torch.tensor([0]), torch.tensor([0]))
    before = {name: value.clone() for name, value in training.decoder.state_dict().items()}
    for _ in range(3):
        assert not len(pool.tick(7))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in training.decoder.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    after = {name: value.clone() for name, value in training.decoder.state_dict().items()}
    pool.new_weights()
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
                cache.joined.clear()
            hidden = decoder.forward(torch.tensor([read]), cache=cache)
            expected = torch.log_softmax(decoder.logits(hidden[:, -1]), dim=-1)[0, token]
            assert float(rollouts.logprobs_BT[0, step]) == pytest.approx(float(expected), abs=2e-5)
            read = [token]


# Training


def make_pipeline(**changes: Any) -> PipelineTraining:
    training = make_training(kind=PipelineTraining, **{"update_steps": 100, **changes})
    assert isinstance(training, PipelineTraining)
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
    pool, stop = training.pool, training.model.stop_tokens[0]

    def scripted(logits_AV: Tensor, _: SamplingSettings, __: Tensor) -> tuple[Tensor, Tensor]:
        numbers, steps = pool._numbers_A.tolist(), pool._steps_A.tolist()
        ends = [step + 1 == lengths.get(number, 2) for number, step in zip(numbers, steps, strict=True)]
        tokens_A = torch.tensor([stop if end else 7 for end in ends])
        return tokens_A, torch.log_softmax(logits_AV, dim=-1).gather(1, tokens_A[:, None])[:, 0]

    monkeypatch.setattr(pool_module, "draw", scripted)
    trained: list[list[list[int]]] = []
    inner = training._train_on

    def keep(groups: Any) -> Any:
        versions, mask = groups.rollouts.versions_BT, groups.rollouts.mask_BT
        trained.append([row[there].tolist() for row, there in zip(versions, mask, strict=True)])
        return inner(groups)

    monkeypatch.setattr(training, "_train_on", keep)
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


@pytest.mark.parametrize("engine", [{"overlap": 3}, {"generation_device": "cpu"}, {"overlap": 50, "slots": 64}])
def test_an_update_beside_the_sampler_gives_the_same_every_time(engine: dict[str, Any], tmp_path: Path):
    cell = make_cell(**PIPELINE, update_steps=6, engine=engine)
    first, second = run(cell, tmp_path / "a"), run(cell, tmp_path / "b")
    assert points(first) == points(second) and distance(weights(first), weights(second)) == 0.0
    training = make_pipeline(**PIPELINE, engine=engine)
    for _ in range(12):
        assert training.update()
        ours, theirs = training.sampling_decoder.state_dict(), training.decoder.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert training.oldest <= 2


def test_a_stop_loses_unfinished_responses_alone_and_says_how_many(tmp_path: Path):
    training = make_pipeline(**PIPELINE)
    for _ in range(3):
        assert training.update()
    for _ in range(3):
        assert training._tick(next_update=training.step)
    whole = {
        (group.number, member): training.records.responses_BT[row].tolist()
        for group in training.ledger
        for member in range(4)
        if training.records.ended_B[row := group.seat * 4 + member]
    }
    in_flight = training.pool.in_flight
    assert whole and in_flight
    again = make_pipeline(**PIPELINE)
    arrays, meta = training.state()
    again.restore(arrays, dict(meta))
    assert again.restarted == in_flight == again.pool.in_flight
    kept = {
        (group.number, member): again.records.responses_BT[row].tolist()
        for group in again.ledger
        for member in range(4)
        if again.records.ended_B[row := group.seat * 4 + member]
    }
    assert kept == whole
    assert [g.version for g in again.ledger] == [g.version for g in training.ledger]
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


@pytest.mark.parametrize(
    ("device", "sampling", "gpus"),
    [
        ("cpu", None, None),
        ("cuda", None, 1),
        ("cuda", "cuda:0", 1),
        ("cuda:1", None, 1),
        ("cuda", "cuda:1", 2),
        ("cuda", "cpu", 1),
    ],
)
def test_gpu_hours_count_the_gpu_that_samples(device: str, sampling: str | None, gpus: int | None):
    assert session_module.gpus_of(EngineSpec(device=device, generation_device=sampling)) == gpus


def test_a_killed_pipeline_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No goodbye: the state is written on the way, then everything after it is lost."""
    cell = make_cell(**PIPELINE, update_steps=8)
    monkeypatch.setattr(session_module, "_SECONDS", 0.0)
    inner, count = LmTraining.update, iter(range(100))

    def dies(self: LmTraining) -> bool:
        if next(count) == 4:
            raise KeyboardInterrupt
        return inner(self)

    monkeypatch.setattr(LmTraining, "update", dies)
    with pytest.raises(KeyboardInterrupt):
        LmEngine().run(cell, tmp_path, Control())
    monkeypatch.setattr(LmTraining, "update", inner)
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
    assert {row["step"] for row in before} <= set(schedule(400, 3).tolist())
    assert [row["step"] for row in points(folder) if row.get("retired") == 12] == [last["step"]]
    assert json.loads((folder / "finished.json").read_text())["rollouts"] == last["rollouts"] == 2 * 4 * last["step"]


def test_nothing_is_begun_that_no_update_will_take():
    training = make_pipeline(**PIPELINE, update_steps=5)
    while training.step < 5:
        assert training.update()
    assert training.sampled == training.rollouts == 5 * 8 * 4 and not len(training.ledger)


@pytest.mark.parametrize("steps", [2, 8])
def test_all_that_is_sampled_is_counted_where_groups_are_refilled(steps: int):
    training = make_pipeline(recipe={"pipeline_steps": steps, "zero_variance_filter": "refill"}, update_steps=6)
    while training.step < 6:
        assert training.update()
    assert not len(training.ledger) and not training.pool.in_flight
    assert training.rollouts == training.sampled >= 6 * training.cell.batch_size


def test_two_groups_of_one_problem_are_both_counted(monkeypatch: pytest.MonkeyPatch):
    """Few problems and many groups: one problem ends twice in a tick, and its pass rate must know both."""
    training = make_pipeline(
        recipe={"name": "cispo", "pipeline_steps": 8, "no_positive_resampling": 1.0},
        problems={"size": 8, "source": "chain:8"},
    )
    judged = 0
    inner = training._judged

    def counting(index_P: Any, rollouts: Any) -> Any:
        nonlocal judged
        judged += len(rollouts)
        return inner(index_P, rollouts)

    monkeypatch.setattr(training, "_judged", counting)
    for _ in range(12):
        assert training.update()
    assert training.sampler.seen_P.sum() == judged == training._seen_P.sum()


def test_an_absurd_number_of_slots_is_named(tmp_path: Path):
    cell = make_cell(**PIPELINE, engine={"slots": 10**9})
    with pytest.raises(InputError, match=r"out of memory .* slots = 1000000000"):
        LmEngine().run(cell, tmp_path, Control())


def test_k_beyond_the_run_is_as_long_as_the_run():
    training = make_pipeline(**{**PIPELINE, "recipe": {"name": "cispo", "pipeline_steps": 10**9}}, update_steps=6)
    while training.step < 6:
        assert training.update()
    assert training.oldest <= 6
