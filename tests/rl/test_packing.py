"""A packed pass, in which the responses to a problem share its prompt, against transformers' model in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isocompute.core.recipe import Recipe, make_recipe
from isocompute.rl import losses, setup
from isocompute.rl import update as update_module
from isocompute.rl.critic import Critic, estimate_advantages, update_critic
from isocompute.rl.losses import head_scores
from isocompute.rl.model.attention import PackedAttention, Packing
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.engine import Rollouts
from isocompute.rl.setup import Sizes
from isocompute.rl.update import Batch, score, score_all, update
from tests.rl.batches import (
    NEW,
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
from tests.rl.models import as_decoder, gradients_of, logits_of, reference


@pytest.fixture(scope="module")
def start() -> Decoder:
    return as_decoder(sharp_reference())


@pytest.fixture(scope="module")
def exact() -> transformers.PreTrainedModel:
    return sharp_reference().double()


@pytest.fixture(scope="module")
def rollouts(start: Decoder) -> Rollouts:
    return off_policy_rollouts(start)


def one_by_one(
    model: transformers.PreTrainedModel, rollouts: Rollouts, temperature: float
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each response in a pass of its own: its row, the log-probs of its tokens, all log-probs at its tokens."""
    for row, length in enumerate(rollouts.lengths_B.tolist()):
        response_T = rollouts.responses_BT[row, :length]
        prompt_T = torch.tensor(rollouts.prompts[int(rollouts.prompt_B[row])])
        logits_TV = model(torch.cat([prompt_T, response_T])[None]).logits[0, len(prompt_T) - 1 : -1] / temperature
        logprobs_TV = logits_TV.log_softmax(dim=-1)
        yield row, logprobs_TV.gather(1, response_T[:, None])[:, 0], logprobs_TV


def test_log_probs_and_entropies(start: Decoder, exact: transformers.PreTrainedModel, rollouts: Rollouts) -> None:
    with torch.no_grad():
        logprobs_BT, entropies_BT = score(start, rollouts, make_recipe({"temperature": 0.6}))
        for row, logprobs_T, logprobs_TV in one_by_one(exact, rollouts, 0.6):
            entropies_T = -(logprobs_TV.exp() * logprobs_TV).sum(dim=-1)
            length = len(logprobs_T)
            torch.testing.assert_close(logprobs_BT[row, :length], logprobs_T.float(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(entropies_BT[row, :length], entropies_T.float(), atol=1e-5, rtol=1e-5)
            assert (logprobs_BT[row, length:] == 0).all() and (entropies_BT[row, length:] == 0).all()


# Gradients

EXTRA = {"kl_coef": 0.1, "entropy_coef": 0.1, "temperature": 0.6}
LOSSES: dict[str, dict[str, Any]] = {
    "reinforce": {"loss": "reinforce", "advantage": "group_mean", "aggregation": "fixed"},
    "reinforce, truncated importance": {"loss": "reinforce", "advantage": "group_mean", "tis_cap": 1.1},
    "clip": {"loss": "clip", "aggregation": "sequence"},
    "clip, truncated importance": {"loss": "clip", "tis_cap": 1.1},
    "clip against the sampler": {"loss": "clip", "ratio_reference": "sampler", "clip_high": 0.05, "clip_low": 0.05},
    "gspo": {
        "loss": "gspo",
        "aggregation": "sequence",
        "ratio_reference": "sampler",
        "clip_low": 0.01,
        "clip_high": 0.01,
    },
    "cispo": {
        "loss": "cispo",
        "advantage": "batch_std",
        "aggregation": "prompt",
        "ratio_reference": "sampler",
        "ratio_cap": 1.02,
    },
}


def recipe_of(name: str) -> Recipe:
    return make_recipe({**EXTRA, **LOSSES[name], "grad_clip": None, "optimizer": "sgd", "name": "grpo"})


def advantages_of(kind: str) -> Tensor:
    rewards_PN = REWARDS.double()
    centred_PN = rewards_PN - rewards_PN.mean(dim=1, keepdim=True)
    scale = {
        "group_mean": torch.ones(1),
        "group_std": rewards_PN.std(dim=1, keepdim=True) + 1e-6,
        "batch_std": centred_PN.pow(2).mean().sqrt() + 1e-6,
    }[kind]
    return (centred_PN / scale).reshape(-1)


def loss_by_hand(model: transformers.PreTrainedModel, recipe: Recipe, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The loss written out response by response in float64, and the ratios it clips or truncates."""
    rollouts = batch.rollouts
    lengths_B = rollouts.lengths_B.double()
    advantages_B = advantages_of(recipe.advantage)
    of_problem_B = lengths_B.view(-1, N).sum(dim=1).repeat_interleave(N)
    weights_B = {
        "token": torch.ones(len(lengths_B)) / lengths_B.sum(),
        "sequence": 1 / (lengths_B * len(lengths_B)),
        "prompt": 1 / (of_problem_B * len(REWARDS)),
        "fixed": torch.ones(len(lengths_B)) / (NEW * len(lengths_B)),
    }[recipe.aggregation]
    total, ratios = torch.zeros((), dtype=torch.float64), []
    for row, logprobs_T, logprobs_TV in one_by_one(model, rollouts, recipe.temperature):
        sampler_T = rollouts.logprobs_BT[row, : len(logprobs_T)].double()
        assert batch.base_logprobs_BT is not None
        base_T = batch.base_logprobs_BT[row, : len(logprobs_T)].double()
        advantage, constant_T = advantages_B[row], logprobs_T.detach()
        old_T = sampler_T if recipe.ratio_reference == "sampler" else constant_T
        ratio_T = (logprobs_T - old_T).exp()
        if recipe.loss == "gspo":
            ratio_T = (logprobs_T - old_T).mean().exp().expand_as(logprobs_T)
        if recipe.loss == "reinforce":
            gain_T = advantage * logprobs_T
        elif recipe.loss == "cispo":
            gain_T = ratio_T.detach().clamp(max=recipe.ratio_cap) * advantage * logprobs_T
        else:
            clipped_T = ratio_T.clamp(1 - recipe.clip_low, 1 + recipe.clip_high)
            gain_T = torch.minimum(ratio_T * advantage, clipped_T * advantage)
        if recipe.tis_cap is not None:
            ratios.append((constant_T - sampler_T).exp() / recipe.tis_cap)
            gain_T = gain_T * (constant_T - sampler_T).exp().clamp(max=recipe.tis_cap)
        elif recipe.ratio_reference == "sampler":
            ratios.append(ratio_T.detach() / (recipe.ratio_cap if recipe.loss == "cispo" else 1 + recipe.clip_high))
        log_r_T = base_T - logprobs_T
        k3_T = log_r_T.exp() - 1 - log_r_T
        entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(dim=-1)
        each_T = -gain_T + recipe.kl_coef * k3_T - recipe.entropy_coef * entropy_T
        total = total + weights_B[row] * each_T.sum()
    return total, ratios


def named_gradients(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    return {name.removeprefix("model."): p.grad for name, p in model.named_parameters() if p.grad is not None}


def relative(mine: dict[str, Tensor], yours: dict[str, Tensor]) -> float:
    """Norm of the difference of the whole gradient over the norm of the second."""
    assert mine.keys() == yours.keys()
    return apart(*(torch.cat([x[name].double().flatten() for name in sorted(x)]) for x in (mine, yours)))


@pytest.mark.parametrize("rows", [16, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_every_loss(
    name: str, rows: int, start: Decoder, exact: transformers.PreTrainedModel, rollouts: Rollouts
) -> None:
    """With KL and entropy terms; the sampler is another policy, so that clips and caps bite."""
    recipe, decoder = recipe_of(name), copy.deepcopy(start)
    batch = batch_for(recipe, rollouts, start)
    optimizer, found = Recorded(decoder, recipe), []
    optimizer.inner.register_step_pre_hook(lambda *_: found.append(gradients_of(decoder)))
    stats = update(decoder, optimizer, batch, recipe, rate=RATE, sizes=at_once(rows))
    exact.zero_grad()
    loss, ratios = loss_by_hand(exact, recipe, batch)
    loss.backward()
    assert relative(found[0], named_gradients(exact)) < 1e-5
    assert stats.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    if ratios:
        cut = torch.cat(ratios) > 1
        assert 0 < int(cut.sum()) < len(cut)


@pytest.mark.parametrize("name", ["llama-bias", "qwen2-tied-yarn", "qwen3-tied"])
def test_gradients_of_every_family(name: str) -> None:
    """Biases, tied heads, RoPE scaling and unequal heads; prompts of one token and responses of one token."""
    model = reference(name)
    decoder, exact = as_decoder(model), copy.deepcopy(model).double()
    lengths = [1, 7, 0, 3, 12, 1]
    prompts = [[5], [7, 1, 33, 80, 4, 6, 21], [50, 2, 8]]
    generator = torch.Generator().manual_seed(9)
    lengths_B = torch.tensor(lengths).clamp(min=1)
    tokens_BT = torch.randint(0, 97, (6, 12), generator=generator)
    rollouts = Rollouts(
        prompts, torch.arange(6) // 2, tokens_BT, torch.zeros(6, 12), lengths_B, torch.ones(6, dtype=torch.bool)
    )
    pull_BT = torch.randn((6, 12), generator=generator)
    logprobs_BT, entropies_BT = score(decoder, rollouts, make_recipe({}))
    ((logprobs_BT - 0.3 * entropies_BT) * pull_BT * rollouts.mask_BT).sum().backward()
    total = torch.zeros((), dtype=torch.float64)
    for row, logprobs_T, logprobs_TV in one_by_one(exact, rollouts, 1.0):
        entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(dim=-1)
        total = total + ((logprobs_T - 0.3 * entropy_T) * pull_BT[row, : len(logprobs_T)]).sum()
    total.backward()
    assert relative(gradients_of(decoder), named_gradients(exact)) < 1e-5


def gradient(decoder: Decoder, rollouts: Rollouts, start: Decoder, *, sizes: Sizes, recompute: bool = False) -> Tensor:
    recipe = recipe_of("clip, truncated importance")
    mine = copy.deepcopy(decoder)
    mine.recompute = recompute
    optimizer = Recorded(mine, recipe)
    update(mine, optimizer, batch_for(recipe, rollouts, start), recipe, rate=RATE, sizes=sizes)
    return optimizer.gradients[0]


def test_recomputed_activations_give_the_same_gradient(
    start: Decoder, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gradient(start, rollouts, start, sizes=at_once(16))
    calls, inner = [], torch.utils.checkpoint.checkpoint

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(1)
        return inner(*args, **named)

    monkeypatch.setattr("torch.utils.checkpoint.checkpoint", counted)
    assert apart(gradient(start, rollouts, start, sizes=at_once(16), recompute=True), plain) < 1e-6
    assert len(calls) == start.config.num_hidden_layers


# Out of memory


class Small:
    """Raises once a pass has more than so many tokens, as a GPU does."""

    def __init__(self, most: int) -> None:
        self.most, self.raised = most, 0

    def attend(self, inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def limited(attention: PackedAttention, *args: Any) -> Tensor:
            if attention.packing.tokens > self.most:
                self.raised += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return inner(attention, *args)

        return limited


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Small:
    monkeypatch.setattr(setup, "_FEWEST_TOKENS", 8)
    out = Small(40)
    monkeypatch.setattr(PackedAttention, "__call__", out.attend(PackedAttention.__call__))
    return out


def test_passes_are_halved_where_memory_runs_out(
    start: Decoder, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of the passes before the failure are forgotten: the result is that of smaller passes."""
    recipe = recipe_of("clip, truncated importance")
    whole = gradient(start, rollouts, start, sizes=at_once(16))
    batch, calls, inner = batch_for(recipe, rollouts, start), [], update_module.score

    def once(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inner(*args, **named)

    monkeypatch.setattr(update_module, "score", once)
    decoder, sizes = copy.deepcopy(start), Sizes(tokens=1024, rows=16, most_rows=9)
    optimizer = Recorded(decoder, recipe)
    update(decoder, optimizer, batch, recipe, rate=RATE, sizes=sizes)
    assert (sizes.tokens, len(calls)) == (512, 4)
    assert apart(optimizer.gradients[0], whole) < 1e-5


def test_every_pass_is_halved_until_it_fits(start: Decoder, rollouts: Rollouts, small: Small) -> None:
    """Gradients, log-probs, and the critic's values and gradients."""
    recipe = make_recipe({"name": "ppo", "optimizer": "sgd", "updates_per_batch": 2})
    sizes = Sizes(tokens=256, rows=16)
    wanted = score_all(start, rollouts, recipe, sizes=Sizes(tokens=32, rows=16))
    assert torch.allclose(score_all(start, rollouts, recipe, sizes=sizes), wanted, atol=1e-5)
    assert sizes.tokens == 32 and small.raised == 3
    small.raised, critic = 0, Critic(copy.deepcopy(start))
    sizes = Sizes(tokens=256, rows=16)
    estimates = estimate_advantages(critic, rollouts, REWARDS.reshape(-1), recipe, sizes=sizes)
    assert sizes.tokens == 32 and small.raised == 3
    sizes = Sizes(tokens=256, rows=16)
    update_critic(critic, Recorded(critic, recipe), rollouts, estimates, recipe, policy_rate=RATE, sizes=sizes)
    assert sizes.tokens == 32
    sizes, decoder = Sizes(tokens=256, rows=16), copy.deepcopy(start)
    batch = batch_for(recipe, rollouts, start, estimates.advantages_BT)
    update(decoder, Recorded(decoder, recipe), batch, recipe, rate=RATE, sizes=sizes)
    assert sizes.tokens == 32


def test_a_sequence_that_does_not_fit_alone_is_an_error(start: Decoder, rollouts: Rollouts, small: Small) -> None:
    small.most = 1
    with pytest.raises(torch.OutOfMemoryError):
        score_all(start, rollouts, make_recipe({}), sizes=Sizes(tokens=256, rows=16))


# The head


def scores_by_hand(hidden_SD: Tensor, weight_VD: Tensor, tokens_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs_SV = (F.linear(hidden_SD, weight_VD) / temperature).log_softmax(dim=-1)
    return logprobs_SV.gather(1, tokens_S[:, None])[:, 0], -(logprobs_SV.exp() * logprobs_SV).sum(dim=-1)


@pytest.mark.parametrize("tokens_at_once", [1, 3, 7])
def test_gradient_of_the_head(tokens_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, where the head's own rounding to FP32 is left out; in several chunks, the last one shorter."""

    def unrounded(hidden_SD: Tensor, weight_VD: Tensor, *, fp32: bool) -> Tensor:
        assert fp32
        return F.linear(hidden_SD, weight_VD)

    monkeypatch.setattr(losses, "head_logits", unrounded)
    monkeypatch.setattr(losses, "_CPU_CHUNK", 11 * tokens_at_once)
    generator = torch.Generator().manual_seed(0)
    hidden_SD = torch.randn((7, 4), generator=generator, dtype=torch.float64, requires_grad=True)
    weight_VD = torch.randn((11, 4), generator=generator, dtype=torch.float64, requires_grad=True)
    tokens_S = torch.randint(0, 11, (7,), generator=generator)

    def both(hidden_SD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
        return head_scores(hidden_SD, weight_VD, tokens_S, temperature=0.7)

    for mine, wanted in zip(
        both(hidden_SD, weight_VD), scores_by_hand(hidden_SD, weight_VD, tokens_S, 0.7), strict=True
    ):
        torch.testing.assert_close(mine, wanted)
    assert torch.autograd.gradcheck(both, (hidden_SD, weight_VD))
    assert torch.autograd.gradcheck(lambda hidden: both(hidden, weight_VD.detach()), (hidden_SD,))


@pytest.mark.parametrize("fp32", [True, False])
def test_the_head_in_bf16(fp32: bool) -> None:
    """Weights and hidden states in bf16; the product in FP32, or as the recipe asks not."""
    generator = torch.Generator().manual_seed(0)
    hidden_SD, weight_VD = (torch.randn(shape, generator=generator).bfloat16() for shape in ((9, 32), (50, 32)))
    hidden_SD, weight_VD = hidden_SD.requires_grad_(), weight_VD.requires_grad_()
    tokens_S = torch.randint(0, 50, (9,), generator=generator)
    wide = [x.detach().double().requires_grad_() for x in (hidden_SD, weight_VD)]
    wanted, wanted_entropies = scores_by_hand(wide[0], wide[1], tokens_S, 1.0)
    (wanted.sum() + 0.1 * wanted_entropies.sum()).backward()
    logprobs_S, entropies_S = head_scores(hidden_SD, weight_VD, tokens_S, fp32=fp32)
    (logprobs_S.sum() + 0.1 * entropies_S.sum()).backward()
    assert logprobs_S.dtype == torch.float32
    assert float((logprobs_S - wanted).detach().abs().max()) < (1e-4 if fp32 else 0.3)
    for mine, yours in zip((hidden_SD, weight_VD), wide, strict=True):
        assert mine.grad is not None and yours.grad is not None and mine.grad.dtype == torch.bfloat16
        assert apart(mine.grad.double(), yours.grad) < (5e-3 if fp32 else 5e-2)


# Layouts


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_packing_is_its_sequences_one_by_one(data: st.DataObject, start: Decoder) -> None:
    prompts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    per_prompt = data.draw(st.lists(st.integers(0, 4), min_size=len(prompts), max_size=len(prompts)))
    prompt_B = np.repeat(np.arange(len(prompts)), per_prompt)
    responses = data.draw(st.lists(st.integers(0, 6), min_size=len(prompt_B), max_size=len(prompt_B)))
    packing = Packing.of(prompts, responses, prompt_B, torch.device("cpu"))
    generator = torch.Generator().manual_seed(packing.tokens)
    tokens_T = torch.randint(0, 97, (packing.tokens,), generator=generator)
    with torch.no_grad():
        hidden_TD = start(tokens_T, torch.from_numpy(packing.positions), PackedAttention(packing))
        logits_TV = start.logits(hidden_TD)
    parts, logits = tokens_T.split([*prompts, *responses]), logits_TV.split([*prompts, *responses])
    for prompt in range(len(prompts)):
        torch.testing.assert_close(logits[prompt], logits_of(start, parts[prompt][None])[0], atol=2e-4, rtol=0)
    for row, prompt in enumerate(prompt_B.tolist()):
        whole_T = torch.cat([parts[prompt], parts[len(prompts) + row]])
        wanted = logits_of(start, whole_T[None])[0, prompts[prompt] :]
        torch.testing.assert_close(logits[len(prompts) + row], wanted, atol=2e-4, rtol=0)


def test_truncated_responses_are_left_out_of_the_loss(start: Decoder, rollouts: Rollouts) -> None:
    """`mask_truncated`: a response that ran out of its budget has no part in any term, nor in any mean."""
    recipe = make_recipe({**EXTRA, "loss": "clip", "aggregation": "sequence", "mask_truncated": True})
    stopped_B = torch.arange(16) % 3 != 0
    batch = batch_for(recipe, replace(rollouts, stopped_B=stopped_B), start)
    for weights_BT in (batch.policy_weights_BT, batch.extra_weights_BT):
        assert torch.equal(weights_BT.sum(dim=1) > 0, stopped_B)
        assert float(weights_BT.sum()) == pytest.approx(1.0)
    off = batch_for(recipe.model_copy(update={"mask_truncated": False}), replace(rollouts, stopped_B=stopped_B), start)
    assert bool((off.policy_weights_BT.sum(dim=1) > 0).all())
