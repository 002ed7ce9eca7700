from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe, make_recipe
from isocompute.rl.engine import LmEngine
from isocompute.rl.lengths import Interruption, length_penalty, penalty_window, plan_interruption
from isocompute.rl.loop import Training
from isocompute.rl.losses import mixed_groups
from isocompute.rl.model.checkpoint import model_folder
from isocompute.rl.rollout.captured import CapturedEngine
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import PromptGroup, Rollouts, SamplingSettings, sample
from isocompute.rl.rollout.source import Group
from isocompute.rl.setup import tasks_of
from isocompute.rl.tasks import ProblemsSpec
from isocompute.rl.update import make_batch, objective, score_all
from tests.rl.cells import make_cell, make_training, points, rates, run
from tests.rl.models import eager, requests

LONG = {"problems": {"source": "chain:4-8", "size": 32, "max_new_tokens": 14}}
INTERRUPT = {"length_control": "interrupt", "interrupt_window": [3, 5], "answer_tokens": 2}


# Interruption


def interrupted() -> tuple[Training, Rollouts, Interruption]:
    training = make_training(**LONG, recipe={"name": "cispo", **INTERRUPT})
    settings = training.engine.settings
    assert settings.interruption is not None
    groups = requests(training.tasks.train.prompts, seed=3)
    return training, eager(training.decoder, groups, settings), settings.interruption


def test_the_phrase_stands_in_the_window_and_the_answer_has_its_budget():
    training, rollouts, interruption = interrupted()
    assert rollouts.forced_BT is not None and interruption.window == (3, 5)
    starts = set()
    for tokens, forced, length in zip(rollouts.responses_BT, rollouts.forced_BT, rollouts.lengths_B, strict=True):
        where = forced.nonzero()[:, 0].tolist()
        if not where:
            assert length <= 5 or 2 in tokens[:5].tolist()  # ended, or ended thinking, before its time
            continue
        assert where == [where[0]] and tokens[where[0]] == interruption.phrase[0] == 2
        starts.add(where[0])
        assert length <= where[0] + 1 + 2
    assert starts == {3, 4, 5}
    assert training.base.stop_tokens


def test_a_response_without_an_interruption_is_the_one_it_was():
    training, rollouts, _ = interrupted()
    settings = SamplingSettings(14, stop_tokens=training.base.stop_tokens)
    plain = eager(training.decoder, requests(training.tasks.train.prompts, seed=3), settings)
    assert rollouts.forced_BT is not None
    before = rollouts.forced_BT.int().cumsum(dim=1) == 0
    width = min(plain.responses_BT.shape[1], rollouts.responses_BT.shape[1])
    same = plain.responses_BT[:, :width] == rollouts.responses_BT[:, :width]
    assert bool((same | ~before[:, :width] | ~rollouts.mask_BT[:, :width]).all())


@pytest.mark.parametrize("make_engine", [EagerEngine, CapturedEngine])
def test_few_slots_interrupt_at_the_same_places(make_engine: type[EagerEngine | CapturedEngine]):
    training, plain, _ = interrupted()
    engine = make_engine(training.decoder, training.engine.settings, rows=9, prompt_tokens=40)
    mine = sample(engine, requests(training.tasks.train.prompts, seed=3))
    assert mine.forced_BT is not None and plain.forced_BT is not None
    assert torch.equal(mine.forced_BT, plain.forced_BT)
    assert torch.equal(mine.responses_BT, plain.responses_BT)
    torch.testing.assert_close(mine.logprobs_BT, plain.logprobs_BT, atol=1e-5, rtol=1e-4)


def test_forced_tokens_have_no_part_in_the_gradient():
    """The gradient is that of a loss summed over the chosen tokens alone, written out here."""
    training, rollouts, _ = interrupted()
    recipe = make_recipe({"name": "cispo", "aggregation": "token", **INTERRUPT})
    rewards_PN = (torch.arange(32) % 3 == 0).float().view(16, 2)
    batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=14, device=training.decoder.device)
    logprobs_BT = score_all(training.decoder, rollouts, recipe, sizes=training.sizes).requires_grad_()
    assert rollouts.forced_BT is not None
    (mine,) = torch.autograd.grad(objective(recipe, batch, logprobs_BT, torch.zeros_like(logprobs_BT)), logprobs_BT)
    chosen = rollouts.mask_BT & ~rollouts.forced_BT
    centred = rewards_PN - rewards_PN.mean(dim=1, keepdim=True)
    advantages_B = (centred / (centred.pow(2).mean().sqrt() + 1e-6)).reshape(-1)
    ratio = (logprobs_BT.detach() - rollouts.logprobs_BT).exp().clamp(max=5.0)
    expected = torch.where(chosen, -ratio * advantages_B[:, None] / chosen.sum(), 0.0)
    torch.testing.assert_close(mine, expected)
    assert bool((mine[rollouts.forced_BT] == 0).all()) and bool(rollouts.forced_BT.any())
    assert bool((logprobs_BT.detach()[rollouts.forced_BT] == 0).all())


def test_an_interrupted_run_counts_its_interruptions(tmp_path: Path):
    recipe = {"name": "scalerl", "warmup_steps": 0, **INTERRUPT}
    last = points(run(make_cell(**LONG, recipe=recipe, update_steps=5), tmp_path))[-1]
    assert 0 < last["interrupted"] <= 1 and 0 <= last["truncated"] <= 1 and last["logprob_gap"] < 0.2


@given(budget=st.integers(8, 20000), phrase=st.integers(1, 4))
def test_what_is_left_open_follows_the_papers_proportions(budget: int, phrase: int):
    made = plan_interruption(Recipe(length_control="interrupt"), (1,) * phrase, budget=budget)
    low, high = made.window
    assert 1 <= low <= high and high + phrase + made.answer_tokens == budget
    if budget == 14336:
        assert made.answer_tokens == 2048


@pytest.mark.parametrize(
    ("recipe", "problems", "says"),
    [
        ({"interrupt_window": [3, 20]}, {}, "interrupt_window: an interruption at 20"),
        ({"interrupt_window": [5, 3]}, {}, "give the shorter length first"),
        ({"interrupt_phrase": "time is up"}, {}, "cannot write 'time is up'"),
        ({"interrupt_phrase": "<eos>"}, {}, "holds a stop token"),
        ({"answer_tokens": 13}, {}, "no room for thinking"),
        ({"length_control": "penalty", "penalty_length": 99}, {}, "longer than the response budget"),
        ({"pipeline_steps": -1}, {}, "pipeline_steps"),
        ({"pipeline_steps": 2, "off_policy_steps": 2}, {}, "two ways to be off-policy"),
        ({"pipeline_steps": 2, "ratio_reference": "trainer"}, {}, "need the probability that a token was sampled with"),
        ({}, {"sources": {"a": "chain:easy"}}, "leave one out"),
        ({"off_policy_steps": 5}, {}, "5 batches of 8 problems are sampled at once, the set has 32"),
        ({"tis_cap": 2.0}, {}, "tis_cap would do it twice"),
        ({"name": "reinforce", "pipeline_steps": 8}, {}, "loss = 'reinforce' has no ratio .*use tis_cap"),
        ({"loss": "reinforce", "off_policy_steps": 2}, {}, "loss = 'reinforce' has no ratio .*use tis_cap"),
        ({}, {"out_of_distribution": {"train": "chain:2"}}, "out_of_distribution: 'train' is the name of another set"),
        ({}, {"out_of_distribution": {"validation": "chain:2"}}, "'validation' is the name of another set"),
        ({}, {"source": None, "sources": {"val": "chain:2"}}, "sources: 'val' is the name of another set"),
        (
            {},
            {"source": None, "sources": {"a": "chain:2"}, "out_of_distribution": {"a": "chain:3"}},
            "out_of_distribution: 'a' is the name of another set",
        ),
        ({"advantage": "gae", "zero_variance_filter": "policy"}, {}, "needs a group baseline"),
    ],
)
def test_wrong_settings_are_named(recipe: dict[str, Any], problems: dict[str, Any], says: str):
    cell = make_cell(
        recipe={"name": "cispo", "length_control": "interrupt", **recipe}, problems={**LONG["problems"], **problems}
    )
    with pytest.raises(InputError, match=says):
        LmEngine().check(cell)


def test_too_few_slots_are_named():
    with pytest.raises(InputError, match="2 slots cannot hold the rollouts of one problem"):
        LmEngine().check(make_cell(recipe={"name": "cispo", "pipeline_steps": 1}, engine={"slots": 2}))


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"slots": 64}, "slots: is for a pipeline"),
        ({"overlap": 3}, "overlap: updates no longer run beside decoding; leave it out"),
        ({"generation_device": "cuda:1"}, "generation_device: a pipeline samples on the device it trains on"),
    ],
)
def test_a_pipelines_options_belong_to_a_pipeline(engine: dict[str, Any], says: str):
    with pytest.raises(InputError, match=says):
        LmEngine().check(make_cell(engine=engine))


@pytest.mark.parametrize("source", ["chain:easy", "chain:hard", "chain:3-12"])
def test_whole_answers_are_left_alone_by_default(source: str):
    """The automatic budget of chains lets the longest response end before anyone interrupts it."""
    training = make_training(problems={"source": source}, recipe={"name": "cispo", "length_control": "interrupt"})
    interruption = training.engine.settings.interruption
    # As many results as operations, and the end.
    longest = max(len(prompt) for prompt in training.tasks.train.prompts) // 2
    assert interruption is not None
    assert interruption.window[0] >= longest and interruption.answer_tokens >= 2


@pytest.mark.parametrize("source", ["chain:easy", "chain:hard", "chain:3-12", "chain:all"])
def test_a_penalty_has_the_budget_of_an_interruption_and_spares_whole_answers(source: str):
    folder = model_folder("tiny")
    problems = ProblemsSpec.of({"source": source, "size": 64, "validation": 8})
    interrupted, penalised = (
        tasks_of(problems, folder, Recipe(length_control=how)) for how in ("interrupt", "penalty")
    )
    assert penalised.max_new_tokens == interrupted.max_new_tokens
    longest, tolerance = penalty_window(Recipe(length_control="penalty"), budget=penalised.max_new_tokens)
    whole = torch.tensor(max(len(prompt) for prompt in penalised.train.prompts) // 2)
    assert float(length_penalty(torch.tensor(1.0), whole, longest=longest, tolerance=tolerance)) == 1.0


def test_a_marker_after_the_phrase_gives_no_more_room():
    interruption = Interruption((7, 2), (3, 3), 2, marker=2)
    start = torch.tensor([3])
    ended = interruption.ends_thinking(torch.tensor([2]), torch.tensor([5]), start)
    assert not bool(ended)
    assert bool(interruption.ends_thinking(torch.tensor([2]), torch.tensor([2]), start))


# Length penalty


def test_the_penalty_is_equation_9_on_half_the_scale():
    """clip((Lmax - |y|) / Lcache - 1, -1, 0) with Lmax = 10, Lcache = 4: nothing up to 6 tokens, -1 from 10 on."""
    lengths = torch.tensor([1, 6, 7, 8, 10, 12, 12])
    rewards = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    shaped = length_penalty(rewards, lengths, longest=10, tolerance=4)
    assert (2 * shaped - 1).tolist() == pytest.approx([1, 1, 0.75, 0.5, 0, 0, -1])  # on the paper's scale of ±1


def test_a_penalised_run_trains_on_lengths_and_reports_what_was_right(monkeypatch: pytest.MonkeyPatch):
    training = make_training(
        **LONG, recipe={"name": "cispo", "length_control": "penalty", "penalty_length": 8, "penalty_tolerance": 4}
    )
    seen: list[Any] = []
    inner = training._batch
    monkeypatch.setattr(training, "_batch", lambda groups: seen.append(groups) or inner(groups))
    training.update()
    (groups,) = seen
    assert set(groups.scores_PN.unique().tolist()) <= {0.0, 1.0}
    assert len(groups.rewards_PN.unique()) > 2


# Curricula


@pytest.mark.parametrize("off_policy", [{"pipeline_steps": 0}, {"pipeline_steps": 2}, {"off_policy_steps": 3}])
def test_a_refilled_batch_holds_problems_that_say_something(
    off_policy: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    training = make_training(
        problems={"source": "chain:easy", "size": 200},
        recipe={"name": "dapo", "zero_variance_filter": "refill", "ratio_reference": "sampler", **off_policy},
    )
    made: list[Any] = []
    inner = training._batch

    def keep(groups: Any) -> Any:
        made.append(groups)
        return inner(groups)

    monkeypatch.setattr(training, "_batch", keep)
    for _ in range(3):
        assert training.update()
    assert all(len(groups) == 8 and bool(mixed_groups(groups.rewards_PN).all()) for groups in made)
    assert training.rollouts > 3 * 8 * 4  # what was dropped has been sampled, and is counted


@pytest.mark.parametrize(
    ("more", "updates"), [({}, 1), ({}, 3), ({"off_policy_steps": 2}, 2), ({"pipeline_steps": 2}, 1)]
)
def test_a_refills_means_are_of_all_that_was_sampled(
    more: dict[str, int], updates: int, monkeypatch: pytest.MonkeyPatch
):
    training = make_training(
        problems={"source": "chain:hard", "size": 400},
        recipe={"name": "dapo", "zero_variance_filter": "refill", "ratio_reference": "sampler", **more},
        update_steps=updates,
    )
    judged: list[Group] = []
    inner = training.source._record

    def keep(group: Group) -> bool:
        judged.append(group)
        return inner(group)

    monkeypatch.setattr(training.source, "_record", keep)
    expected = []
    for _ in range(updates):
        assert training.update()
        numbers = {group.number for group in training.source.ledger}
        graded = [group.graded for group in judged if group.number not in numbers and group.graded is not None]
        rewards_PN = torch.cat([groups.rewards_PN for groups in graded])
        expected.append((float(rewards_PN.mean()), 1 - float(mixed_groups(rewards_PN).float().mean())))
        judged[:] = [group for group in judged if group.number in numbers]
    found = training._since_last()
    assert found["dropped_groups"] > 0
    assert (found["train/avg"], found["zero_variance"]) == pytest.approx(np.mean(expected, axis=0), abs=1e-6)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_refill_gives_up_on_a_set_that_says_nothing(steps: int, monkeypatch: pytest.MonkeyPatch):
    training = make_training(
        problems={"source": "chain:extremely-hard", "size": 16},
        recipe={
            "name": "dapo",
            "zero_variance_filter": "refill",
            "temperature": 1e-3,
            "ratio_reference": "sampler",
            "pipeline_steps": steps,
        },
    )
    before = {name: value.clone() for name, value in training.decoder.state_dict().items()}

    def bounded() -> None:
        assert training.rollouts <= 2 * 10 * 8 * 4, "it never gives up"

    monkeypatch.setattr(training.source, "on_step", bounded)
    assert training.update()
    moved = max(float((before[k] - v).abs().max()) for k, v in training.decoder.state_dict().items())
    assert training.rollouts >= 10 * 8 * 4 and np.isfinite(moved)


def test_a_group_that_says_nothing_has_no_part_in_any_term():
    """Under `refill` a group without a difference is there for want of others; KL and entropy pass it over too."""
    training = make_training(**LONG)
    rollouts = eager(training.decoder, requests(training.tasks.train.prompts[:8], seed=3), training.engine.settings)
    rewards_PN = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    recipe = make_recipe({"name": "dapo", "zero_variance_filter": "refill", "kl_coef": 0.1})
    batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=14, device=training.decoder.device)
    for weights_BT in (batch.policy_weights_BT, batch.extra_weights_BT):
        assert (weights_BT.sum(dim=1) > 0).tolist() == [False, False, True, True, False, False, True, True]


# Off-policy by batches


def test_rollouts_of_k_updates_are_sampled_at_once(monkeypatch: pytest.MonkeyPatch):
    training = make_training(recipe={"name": "cispo", "off_policy_steps": 3}, update_steps=6)
    drawn: list[int] = []
    inner = training.engine.submit

    def counting(group: PromptGroup) -> None:
        drawn[-1] += 1
        inner(group)

    monkeypatch.setattr(training.engine, "submit", counting)
    ages = []
    for _ in range(6):
        drawn.append(0)
        assert training.update()
        ages.append(round(training._sums["staleness"], 6))
    assert drawn == [24, 0, 0, 24, 0, 0]
    assert np.diff([0.0, *ages]).tolist() == [0, 1, 2, 0, 1, 2]
    assert training.rollouts == 6 * 8 * 4 and training.oldest == 2


def test_nothing_is_sampled_that_no_update_will_train_on(tmp_path: Path):
    folder = run(make_cell(recipe={"name": "cispo", "off_policy_steps": 3}, update_steps=5), tmp_path)
    verified = sum(sum(row["samples"]) for row in rates(folder) if row["set"] == "train")
    assert verified == points(folder)[-1]["rollouts"] == 5 * 8 * 4


# Several sources


def test_sources_are_trained_on_together_and_measured_apart(tmp_path: Path):
    problems = {"source": None, "sources": {"short": "chain:1-2", "long": "chain:6-8"}, "size": 20, "validation": 12}
    folder = run(make_cell(problems=problems), tmp_path)
    for point in points(folder):
        both = [point[f"{name}/avg@4"] for name in ("short", "long")]
        assert point["avg@4"] == pytest.approx(float(np.mean(both)), abs=1e-5)  # of one size
    training = make_training(problems=problems)
    assert len(training.tasks.train) == 40
    assert {len(p) for p in training.tasks.train.prompts[:20]} <= {4, 6}
    first = points(folder)[0]
    assert first["short/avg@4"] > first["long/avg@4"]


def test_what_one_source_is_measured_on_no_other_trains_on():
    problems = {"source": None, "sources": {"a": "chain:1", "b": "chain:1-2"}, "size": 600, "validation": 100}
    tasks = make_training(problems=problems).tasks
    measured = {tuple(prompt) for prompt in tasks.validation.prompts}
    assert not measured & {tuple(prompt) for prompt in tasks.train.prompts}
    assert len(tasks.train) < 1200  # some had to go
    # The grader finds the answers of those that are left; the prompt says what the answer is.
    for problem in (0, 1, 50, len(tasks.train) - 2, len(tasks.train) - 1):
        answer = computed(list(tasks.train.prompts[problem]))
        assert tasks.train.grade(problem, [[answer + 6, 1], [(answer + 1) % 23 + 6, 1]], [True, True]) == [1.0, 0.0]


def computed(prompt: list[int]) -> int:
    """The result of a chain; numbers follow six other words in the vocabulary."""
    words = ["<pad>", "<eos>", "=", "+", "-", "*"]
    value = prompt[0] - 6
    for operation, number in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        other = number - 6
        value = {"+": value + other, "-": value - other, "*": value * other}[words[operation]] % 23
    return value
