"""The step from rollouts to weights: micro-batches, the objective end to end, FP32 masters, divergence, resuming."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isocompute.core.recipe import RECIPES, Recipe, make_recipe
from isocompute.rl.critic import Critic, estimate_advantages, update_critic
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.eager import SamplingSettings, sample
from isocompute.rl.rollout.rollouts import Rollouts
from isocompute.rl.update import Batch, DivergedError, Optimizer, make_batch, objective, score, score_all, update
from tests.rl.models import reference

PROMPTS = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50], [3, 3]]
N, NEW = 4, 10
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
"""The second problem has no variance."""
RATE = 1e-3


def sharp_reference() -> transformers.PreTrainedModel:
    """Random weights whose head is large enough for a policy with opinions."""
    model = reference("qwen3")
    with torch.no_grad():
        model.lm_head.weight *= 4.0
    return model


def as_decoder(model: transformers.PreTrainedModel) -> Decoder:
    decoder = Decoder(DecoderConfig.from_json(model.config.to_dict())).eval()
    decoder.load_state_dict({name.removeprefix("model."): value for name, value in model.state_dict().items()})
    return decoder


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than they save on so little."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def start() -> Decoder:
    return as_decoder(sharp_reference())


@pytest.fixture(scope="module")
def rollouts(start: Decoder) -> Rollouts:
    """Responses of unequal length, sampled by another policy than the one that is trained."""
    other = copy.deepcopy(start)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    out = sample(other, PROMPTS, SamplingSettings(NEW, stop_tokens=tuple(range(40, 60))), seed=4, per_prompt=N)
    assert len(set(out.lengths_B.tolist())) > 4
    return out


def batch_for(recipe: Recipe, rollouts: Rollouts, base: Decoder, advantages_BT: Tensor | None = None) -> Batch:
    """As the trainer makes it; the base is not quite the policy, so that the KL term pulls."""
    batch = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW, advantages_BT=advantages_BT)
    base_BT = score_all(base, rollouts, recipe, micro_batch=16) - 0.1 * rollouts.mask_BT
    return replace(batch, base_logprobs_BT=base_BT) if recipe.kl_coef else batch


class Recorded(Optimizer):
    """Keeps the gradient of every step."""

    def __init__(self, module: torch.nn.Module, recipe: Recipe) -> None:
        super().__init__(list(module.parameters()), recipe)
        self.gradients: list[Tensor] = []
        self.inner.register_step_pre_hook(
            lambda *_: self.gradients.append(torch.cat([m.grad.flatten() for m in self.masters if m.grad is not None]))
        )


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


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


@pytest.mark.parametrize("name", TABLES)
def test_micro_batches_of_any_size_give_one_gradient(name: str, start: Decoder, rollouts: Rollouts) -> None:
    recipe = make_recipe({**TABLES[name], "updates_per_batch": 2, "grad_clip": None, "optimizer": "sgd"})
    gradients, values = {}, {}
    for micro_batch in (16, 1, 3, 7):
        decoder = copy.deepcopy(start)
        advantages_BT = None
        if recipe.advantage == "gae":
            critic = Critic(decoder)
            with torch.no_grad():
                critic.head.weight.fill_(0.05)
            estimates = estimate_advantages(critic, rollouts, REWARDS.reshape(-1), recipe, micro_batch=micro_batch)
            advantages_BT = estimates.advantages_BT
            optimizer = Recorded(critic, recipe)
            update_critic(critic, optimizer, rollouts, estimates, recipe, rate=RATE, micro_batch=micro_batch)
            values[micro_batch] = torch.cat(optimizer.gradients)
        optimizer = Recorded(decoder, recipe)
        batch = batch_for(recipe, rollouts, start, advantages_BT)
        update(decoder, optimizer, batch, recipe, rate=RATE, micro_batch=micro_batch)
        assert len(optimizer.gradients) == 2
        gradients[micro_batch] = torch.cat(optimizer.gradients)
    for out in filter(None, (gradients, values)):
        for micro_batch in (1, 3, 7):
            assert apart(out[micro_batch], out[16]) < 1e-5


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
        batch = make_batch(recipe, part, rewards, max_new_tokens=NEW)
        update(decoder, optimizer, batch, recipe, rate=RATE, micro_batch=size)
        return optimizer.gradients[0]

    wanted = gradient(rollouts, REWARDS, 16)
    assert apart(gradient(rollouts.take(rows), REWARDS[order], micro_batch), wanted) < 1e-5


def test_end_to_end_from_the_equations(start: Decoder, rollouts: Rollouts) -> None:
    """The healthy recipe's gradient through transformers' model, one response at a time, written out in float64.

    Advantage (r - mean) / (std + 1e-6); ratio against the policy's own log-probs, so 1 at the first update; weight
    min(π / sampler, 2); mean over all tokens; plus .1 k3 to the base; minus .1 entropy; temperature .6.
    """
    table = {"name": "isocompute-easy", "kl_coef": 0.1, "entropy_coef": 0.1, "tis_cap": 1.1}
    recipe = make_recipe({**table, "grad_clip": None, "optimizer": "sgd"})
    decoder = copy.deepcopy(start)
    optimizer = Recorded(decoder, recipe)
    batch = batch_for(recipe, rollouts, start)
    update(decoder, optimizer, batch, recipe, rate=RATE, micro_batch=5)

    model = sharp_reference()
    tokens = int(rollouts.mask_BT.sum())
    total = torch.zeros((), dtype=torch.float64)
    truncated = 0
    for b in range(len(rollouts)):
        problem, length = b // N, int(rollouts.lengths_B[b])
        response, prompt = rollouts.responses_BT[b, :length], torch.tensor(PROMPTS[problem])
        logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1].double() / 0.6
        group = REWARDS[problem].double()
        advantage = (group[b % N] - group.mean()) / (group.std() + 1e-6)
        for t in range(length):
            logprobs = logits[t] - torch.logsumexp(logits[t], 0)
            logprob = logprobs[response[t]]
            off = math.exp(float(logprob.detach()) - float(rollouts.logprobs_BT[b, t]))
            truncated += off > 1.1
            ratio = (logprob - logprob.detach()).exp()
            gain = min(off, 1.1) * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            log_r = logprob.detach() - 0.1 - logprob  # the base is the policy at the start, less .1
            k3 = log_r.exp() - 1.0 - log_r
            entropy = -(logprobs.exp() * logprobs).sum()
            total = total + (-gain + 0.1 * k3 - 0.1 * entropy) / tokens
    assert 0 < truncated < tokens
    total.backward()
    named = dict(model.named_parameters())
    wanted = torch.cat(
        [
            named[name if name == "lm_head.weight" else f"model.{name}"].grad.flatten()  # type: ignore[union-attr]  # it has one
            for name, _ in decoder.named_parameters()
        ]
    )
    assert apart(optimizer.gradients[0], wanted) < 1e-5


KINDS = [torch.float32, torch.bfloat16]


def test_bf16_weights_move_through_fp32_masters(start: Decoder, rollouts: Rollouts) -> None:
    """Steps of 1e-6 round away where they are added to bf16 weights; masters add them up."""
    recipe, steps = make_recipe({"name": "grpo", "kl_coef": 0.0}), 20
    decoder, bare = (copy.deepcopy(start).to(torch.bfloat16) for _ in "ab")
    before = [p.detach().clone() for p in decoder.parameters()]
    optimizer = Optimizer(list(decoder.parameters()), recipe)
    in_bf16 = torch.optim.AdamW(bare.parameters(), lr=1e-6, weight_decay=0.0)
    batch = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW)
    for _ in range(steps):
        update(decoder, optimizer, batch, recipe, rate=1e-6, micro_batch=16)
        logprobs_BT, entropies_BT = score(bare, rollouts)
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
    optimizer = Optimizer(list(decoder.parameters()), recipe)
    good = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW)
    update(decoder, optimizer, good, recipe, rate=RATE, micro_batch=6)
    before = optimizer.state("")
    advantages_BT = good.advantages_BT.clone()
    advantages_BT[3] = bad
    with pytest.raises(DivergedError):
        update(decoder, optimizer, replace(good, advantages_BT=advantages_BT), recipe, rate=RATE, micro_batch=6)
    after = optimizer.state("")
    assert all((before[name] == after[name]).all() for name in before)
    assert all(p.grad is None for p in decoder.parameters())
    for parameter, master in zip(decoder.parameters(), optimizer.masters, strict=True):
        assert torch.equal(parameter, master.to(dtype))


def test_divergence_in_a_later_update_on_the_batch_is_noticed(start: Decoder, rollouts: Rollouts) -> None:
    """The first step at an absurd rate ruins the policy; the second must not pass silently."""
    recipe = make_recipe({"name": "grpo", "kl_coef": 0.0, "updates_per_batch": 2})
    decoder = copy.deepcopy(start)
    optimizer = Optimizer(list(decoder.parameters()), recipe)
    batch = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW)
    with pytest.raises(DivergedError):
        update(decoder, optimizer, batch, recipe, rate=1e30, micro_batch=16)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_restored_optimizer_goes_on_to_the_bit(dtype: torch.dtype, start: Decoder, rollouts: Rollouts) -> None:
    recipe = make_recipe({"name": "isocompute-easy", "updates_per_batch": 2})

    def train(decoder: Decoder, optimizer: Optimizer, steps: int) -> None:
        batch = batch_for(recipe, rollouts, start)
        for _ in range(steps):
            update(decoder, optimizer, batch, recipe, rate=RATE, micro_batch=6)

    whole = copy.deepcopy(start).to(dtype)
    straight = Optimizer(list(whole.parameters()), recipe)
    train(whole, straight, 3)
    saved = {name: value.copy() for name, value in straight.state("policy/").items()}
    train(whole, straight, 2)

    resumed = copy.deepcopy(start).to(dtype)
    again = Optimizer(list(resumed.parameters()), recipe)
    again.restore(saved, "policy/")
    train(resumed, again, 2)
    first, second = straight.state(""), again.state("")
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
