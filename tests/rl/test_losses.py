"""Losses and advantages against float64 references written token by token from the equations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.rl import losses
from isocompute.rl.losses import decoupled_advantages, gae, group_advantages, mixed_groups

B, T, N = 6, 5, 3


@pytest.fixture
def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([5, 3, 1, 4, 2, 5])
    return {
        "logprobs": -normal(B, T).abs(),
        "old": -normal(B, T).abs(),
        "advantages": normal(B, 1),
        "mask": torch.arange(T)[None] < lengths[:, None],
    }


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    loss(x).backward()
    assert x.grad is not None
    return x.grad


def by_hand(kind: str, d: dict[str, Tensor], x: Tensor) -> Tensor:
    """Mean over tokens of a response, then over responses, in plain Python."""
    total = torch.zeros((), dtype=torch.float64)
    for b in range(B):
        tokens = [t for t in range(T) if bool(d["mask"][b, t])]
        a = d["advantages"][b, 0]
        sequence_ratio = torch.exp(sum((x[b, t] - d["old"][b, t]) for t in tokens) / len(tokens))
        row = torch.zeros((), dtype=torch.float64)
        for t in tokens:
            ratio = torch.exp(x[b, t] - d["old"][b, t])
            if kind == "reinforce":
                row = row - a * x[b, t]
            elif kind == "clip":
                row = row - torch.min(ratio * a, torch.clamp(ratio, 0.8, 1.28) * a)
            elif kind == "gspo":
                row = row - torch.min(sequence_ratio * a, torch.clamp(sequence_ratio, 0.9, 1.1) * a)
            else:
                row = row - min(float(ratio.detach()), 1.5) * a * x[b, t]
        total = total + row / len(tokens)
    return total / B


@pytest.mark.parametrize("kind", ["reinforce", "clip", "gspo", "cispo"])
def test_gradients_match_the_equations(kind: str, data: dict[str, Tensor]) -> None:
    def ours(x: Tensor) -> Tensor:
        per_token = {
            "reinforce": lambda: losses.reinforce_loss(x, data["advantages"]),
            "clip": lambda: losses.clip_loss(x, data["old"], data["advantages"], low=0.2, high=0.28),
            "gspo": lambda: losses.gspo_loss(x, data["old"], data["advantages"], data["mask"], low=0.1, high=0.1),
            "cispo": lambda: losses.cispo_loss(x, data["old"], data["advantages"], cap=1.5),
        }[kind]()
        return (per_token * losses.token_weights(data["mask"].double(), how="sequence")).sum()

    expected = gradient(lambda x: by_hand(kind, data, x), data["logprobs"])
    torch.testing.assert_close(gradient(ours, data["logprobs"]), expected)
    assert (expected != 0).any()


def test_a_clip_silences_and_cispo_does_not() -> None:
    """A ratio far above the clip with a positive advantage: no gradient in PPO, a capped one in CISPO."""
    old, high = torch.full((1, 1), -3.0), torch.full((1, 1), -0.5)
    gain = torch.ones(1, 1)
    assert gradient(lambda x: losses.clip_loss(x, old, gain).sum(), high).item() == 0.0
    assert gradient(lambda x: losses.cispo_loss(x, old, gain, cap=5.0).sum(), high).item() == pytest.approx(-5.0)


def test_aggregations_differ_as_defined(data: dict[str, Tensor]) -> None:
    loss, mask = data["logprobs"], data["mask"]
    rows = [loss[b][mask[b]] for b in range(B)]
    expected = {
        "token": torch.cat(rows).mean(),
        "sequence": torch.stack([row.mean() for row in rows]).mean(),
        "prompt": torch.stack([torch.cat(rows[:3]).mean(), torch.cat(rows[3:]).mean()]).mean(),
        "fixed": torch.stack([row.sum() / 7 for row in rows]).mean(),
    }
    mask = mask.double()
    got = {
        how: (loss * losses.token_weights(mask, how=how, rollouts_per_problem=3, length=7)).sum() for how in expected
    }
    for how, value in expected.items():
        torch.testing.assert_close(got[how], value)
    assert len({round(float(v), 9) for v in got.values()}) == 4
    with pytest.raises(InputError, match="'median' is not one of"):
        losses.token_weights(mask, how="median")


@pytest.mark.parametrize("how", ["token", "sequence", "prompt", "fixed"])
def test_rows_left_out_do_not_count(how: str, data: dict[str, Tensor]) -> None:
    """A batch with one problem filtered out has the weights of the batch without it."""
    mask = data["mask"].double()
    keep = torch.tensor([False] * 3 + [True] * 3)
    weights = losses.token_weights(mask, how=how, rollouts_per_problem=3, length=7, keep_B=keep)
    assert (weights[:3] == 0).all()
    torch.testing.assert_close(weights[3:], losses.token_weights(mask[3:], how=how, rollouts_per_problem=3, length=7))


def test_k3_is_unbiased_and_never_negative() -> None:
    policy = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    base = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    estimates = losses.kl_to_base(policy.log(), base.log())
    assert (estimates >= 0).all()
    torch.testing.assert_close((policy * estimates).sum(), (policy * (policy / base).log()).sum())


def test_entropy_and_importance_weights() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]]])
    torch.testing.assert_close(
        losses.entropy(logits.log_softmax(-1)), torch.tensor([[np.log(4.0), 0.0]], dtype=torch.float32)
    )
    trainer = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    weights = losses.truncated_importance(trainer, torch.tensor([[-1.5, -4.0]]), cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[np.exp(0.5), 2.0]], dtype=torch.float32))
    assert not weights.requires_grad


def test_group_advantages() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    std = group_advantages(rewards, kind="group_std")
    for row, advantage in zip(rewards.numpy(), std.numpy(), strict=True):
        expected = (row - row.mean()) / (row.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(advantage, expected, rtol=1e-5)
    mean = group_advantages(rewards, kind="group_mean")
    torch.testing.assert_close(mean, rewards - rewards.mean(1, keepdim=True))
    batch = group_advantages(rewards, kind="batch_std")
    torch.testing.assert_close(batch, mean / (mean.pow(2).mean().sqrt() + 1e-6))
    assert group_advantages(rewards, kind="none").equal(rewards)
    assert mixed_groups(rewards).tolist() == [True, True, False]
    with pytest.raises(InputError, match="n >= 2"):
        group_advantages(rewards[:, :1], kind="group_std")


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "batch_std"])
@pytest.mark.parametrize("reward", [0.1, 0.7, 0.8333333, 1 / 3])
@pytest.mark.parametrize("n", [3, 7, 16])
def test_equal_fractions_are_worth_nothing(kind: str, reward: float, n: int) -> None:
    assert group_advantages(torch.full((2, n), reward), kind=kind).abs().max() == 0.0
    beside_a_mixed_one = torch.full((2, n), reward)
    beside_a_mixed_one[1, 0] = 1.0
    advantages = group_advantages(beside_a_mixed_one, kind=kind)
    assert advantages[0].abs().max() == 0.0 and advantages[1, 0] > 0


def test_decoupled_baseline_uses_all_rollouts() -> None:
    rewards = torch.rand(50, 16, generator=torch.Generator().manual_seed(0))
    advantages, places = decoupled_advantages(rewards, train=4, kind="group_mean", seed=1)
    assert advantages.shape == places.shape == (50, 4)
    assert all(len(set(row)) == 4 for row in places.tolist())
    torch.testing.assert_close(advantages, rewards.gather(1, places) - rewards.mean(1, keepdim=True))
    with pytest.raises(InputError, match="use 1 to 16"):
        decoupled_advantages(rewards, train=17, kind="group_mean", seed=1)


def test_gae_is_the_discounted_sum_of_surprises() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in "ab")
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    advantages, returns = gae(rewards * mask, values, mask, discount=0.9, trace=0.8)
    for b, length in enumerate((4, 2)):
        v = [*values[b, :length].tolist(), 0.0]
        deltas = [float(rewards[b, t]) + 0.9 * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            expected = sum((0.9 * 0.8) ** (s - t) * deltas[s] for s in range(t, length))
            assert float(advantages[b, t]) == pytest.approx(expected)
            assert float(returns[b, t]) == pytest.approx(expected + v[t])
    assert (advantages[1, 2:] == 0).all()


def test_value_loss_takes_the_larger_error() -> None:
    values, old, returns = (torch.tensor([[x]]) for x in (1.0, 0.0, 0.9))
    assert losses.value_loss(values, old, returns).item() == pytest.approx(0.5 * (0.2 - 0.9) ** 2)
