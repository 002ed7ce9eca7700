"""The step from rollouts to weights: micro-batches, FP32 masters, divergence, resuming."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isocompute.core.recipe import RECIPES, make_recipe
from isocompute.rl.critic import Critic, estimate_advantages, update_critic
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.engine import Rollouts
from isocompute.rl.setup import Sizes
from isocompute.rl.update import DivergedError, Optimizer, make_batch, objective, score, update
from tests.rl.batches import (
    CPU,
    NEW,
    PROMPTS,
    RATE,
    REWARDS,
    N,
    Recorded,
    apart,
    at_once,
    batch_for,
    off_policy_rollouts,
    sharp_reference,
)
from tests.rl.models import as_decoder

KINDS = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def start() -> Decoder:
    return as_decoder(sharp_reference())


@pytest.fixture(scope="module")
def rollouts(start: Decoder) -> Rollouts:
    return off_policy_rollouts(start)


FILTERED: dict[str, dict[str, Any]] = {
    "grpo, policy filter": {"name": "grpo", "zero_variance_filter": "policy", "entropy_coef": 0.1},
    "cispo, filter of all terms": {
        "name": "cispo",
        "zero_variance_filter": "all",
        "entropy_coef": 0.1,
        "kl_coef": 0.1,
        "ratio_reference": "trainer",
        "tis_cap": 1.2,
    },
}
TABLES = {**{name: {"name": name} for name in RECIPES}, **FILTERED}


SPLITS = {
    "one pass": Sizes(tokens=4096, rows=16),
    "one row": Sizes(tokens=4096, rows=16, most_rows=1),
    "7 rows": Sizes(tokens=4096, rows=16, most_rows=7),
    "1 token": Sizes(tokens=1, rows=16),
    "31 tokens": Sizes(tokens=31, rows=16),
}


@pytest.mark.parametrize("name", TABLES)
def test_micro_batches_of_any_size_give_one_gradient(name: str, start: Decoder, rollouts: Rollouts) -> None:
    recipe = make_recipe({**TABLES[name], "updates_per_batch": 2, "grad_clip": None, "optimizer": "sgd"})
    gradients, values = {}, {}
    for split, sizes in SPLITS.items():
        decoder = copy.deepcopy(start)
        advantages_BT = None
        if recipe.advantage == "gae":
            critic = Critic(decoder)
            with torch.no_grad():
                critic.head.weight.fill_(0.05)
            estimates = estimate_advantages(critic, rollouts, REWARDS.reshape(-1), recipe, sizes=sizes)
            advantages_BT = estimates.advantages_BT
            optimizer = Recorded(critic, recipe)
            update_critic(critic, optimizer, rollouts, estimates, recipe, policy_rate=RATE, sizes=sizes)
            values[split] = torch.cat(optimizer.gradients)
        optimizer = Recorded(decoder, recipe)
        batch = batch_for(recipe, rollouts, start, advantages_BT)
        update(decoder, optimizer, batch, recipe, rate=RATE, sizes=sizes)
        assert len(optimizer.gradients) == 2
        gradients[split] = torch.cat(optimizer.gradients)
    for out in filter(None, (gradients, values)):
        for split in SPLITS:
            assert apart(out[split], out["one pass"]) < 1e-5


def tokens_of(rollouts: Rollouts) -> int:
    return sum(map(len, rollouts.prompts)) + int(rollouts.lengths_B.sum())


def test_passes_keep_to_their_sizes(rollouts: Rollouts) -> None:
    """A prompt counts once a pass; a row that is too large has a pass of its own."""
    for tokens, most in ((31, None), (1, None), (64, 3), (4096, 5)):
        found = list(rollouts.micro_batches(tokens=tokens, rows=most))
        assert torch.cat(found).tolist() == list(range(16))
        for rows in found:
            part = rollouts.take(rows)
            used = tokens_of(part)
            assert len(part) == 1 or (used <= tokens and (most is None or len(part) <= most))
        if most is None:  # no pass could have taken the next row too
            for rows in found[:-1]:
                more = rollouts.take(torch.arange(int(rows[0]), int(rows[-1]) + 2))
                assert tokens_of(more) > tokens


@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(len(PROMPTS))), micro_batch=st.integers(1, 16))
def test_the_order_of_problems_does_not_matter(
    order: list[int], micro_batch: int, start: Decoder, rollouts: Rollouts
) -> None:
    recipe = make_recipe({"name": "cispo", "grad_clip": None, "optimizer": "sgd"})
    rows = torch.tensor([problem * N + i for problem in order for i in range(N)])

    def gradient(part: Rollouts, rewards: Tensor, size: int) -> Tensor:
        decoder = copy.deepcopy(start)
        optimizer = Recorded(decoder, recipe)
        batch = make_batch(recipe, part, rewards, max_new_tokens=NEW, device=CPU)
        update(decoder, optimizer, batch, recipe, rate=RATE, sizes=at_once(size))
        return optimizer.gradients[0]

    wanted = gradient(rollouts, REWARDS, 16)
    assert apart(gradient(rollouts.take(rows), REWARDS[order], micro_batch), wanted) < 1e-5


def test_bf16_weights_move_through_fp32_masters(start: Decoder, rollouts: Rollouts) -> None:
    """Steps of 1e-6 round away where they are added to bf16 weights; masters add them up."""
    recipe, steps = make_recipe({"name": "grpo", "kl_coef": 0.0}), 20
    decoder, bare = (copy.deepcopy(start).to(torch.bfloat16) for _ in "ab")
    before = [p.detach().clone() for p in decoder.parameters()]
    optimizer = Optimizer(list(decoder.parts()), recipe)
    in_bf16 = torch.optim.AdamW(bare.parameters(), lr=1e-6, weight_decay=0.0)
    batch = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW, device=CPU)
    for _ in range(steps):
        update(decoder, optimizer, batch, recipe, rate=1e-6, sizes=at_once(16))
        logprobs_BT, entropies_BT = score(bare, rollouts, recipe)
        objective(recipe, batch, logprobs_BT, entropies_BT).backward()
        in_bf16.step()
        in_bf16.zero_grad()
    moved = torch.cat([(m.detach() - b.float()).flatten() for m, b in zip(optimizer.masters, before, strict=True)])
    assert moved.dtype == torch.float32
    assert float(moved.abs().max()) == pytest.approx(steps * 1e-6, rel=0.05)
    for parameter, master in zip(decoder.parameters(), optimizer.masters, strict=True):
        assert torch.equal(parameter, master.to(torch.bfloat16))

    def stuck(model: Decoder) -> float:
        """Share of the weights above 1 / 256 (where bf16's grain is at least 3e-5) that never moved."""
        pairs = [(p.detach(), b) for p, b in zip(model.parameters(), before, strict=True)]
        return float(torch.cat([(p == b)[b.abs() > 2**-8] for p, b in pairs]).float().mean())

    assert stuck(bare) == 1.0
    assert stuck(decoder) < 1.0


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_changes_nothing(
    bad: float, dtype: torch.dtype, start: Decoder, rollouts: Rollouts
) -> None:
    recipe = make_recipe({"name": "grpo", "kl_coef": 0.0})
    decoder = copy.deepcopy(start).to(dtype)
    optimizer = Optimizer(list(decoder.parts()), recipe)
    good = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW, device=CPU)
    update(decoder, optimizer, good, recipe, rate=RATE, sizes=at_once(6))
    before = optimizer.state("")
    advantages_BT = good.advantages_BT.clone()
    advantages_BT[3] = bad
    with pytest.raises(DivergedError):
        update(decoder, optimizer, replace(good, advantages_BT=advantages_BT), recipe, rate=RATE, sizes=at_once(6))
    after = optimizer.state("")
    assert all((before[name] == after[name]).all() for name in before)
    assert all(p.grad is None for p in decoder.parameters())
    for parameter, master in zip(decoder.parameters(), optimizer.masters, strict=True):
        assert torch.equal(parameter, master.to(dtype))


def test_divergence_in_a_later_update_on_the_batch_is_noticed(start: Decoder, rollouts: Rollouts) -> None:
    """The first step at an absurd rate ruins the policy; the second must not pass silently."""
    recipe = make_recipe({"name": "grpo", "kl_coef": 0.0, "updates_per_batch": 2})
    decoder = copy.deepcopy(start)
    optimizer = Optimizer(list(decoder.parts()), recipe)
    batch = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW, device=CPU)
    with pytest.raises(DivergedError):
        update(decoder, optimizer, batch, recipe, rate=1e30, sizes=at_once(16))


@pytest.mark.parametrize("dtype", KINDS)
def test_a_restored_optimizer_goes_on_to_the_bit(dtype: torch.dtype, start: Decoder, rollouts: Rollouts) -> None:
    recipe = make_recipe({"name": "isocompute-easy", "updates_per_batch": 2})

    def train(decoder: Decoder, optimizer: Optimizer, steps: int) -> None:
        batch = batch_for(recipe, rollouts, start)
        for _ in range(steps):
            update(decoder, optimizer, batch, recipe, rate=RATE, sizes=at_once(6))

    whole = copy.deepcopy(start).to(dtype)
    straight = Optimizer(list(whole.parts()), recipe)
    train(whole, straight, 3)
    saved = {name: value.copy() for name, value in straight.state("policy/").items()}
    train(whole, straight, 2)

    resumed = copy.deepcopy(start).to(dtype)
    again = Optimizer(list(resumed.parts()), recipe)
    again.restore(saved, "policy/")
    train(resumed, again, 2)
    first, second = straight.state(""), again.state("")
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
