"""Advantages and gradients on counts against definitions written out rollout by rollout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.core.recipe import RECIPES, Recipe, learning_rate, make_recipe
from isocompute.sim.policy import CountBatch, advantages, logit_gradient, subsample
from isocompute.sim.world import softmax

P, K = 5, 6


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=2, max_size=6))
def test_group_advantages_are_the_rollouts_own(right: list[int]) -> None:
    n = 7
    for kind in ("group_std", "group_mean", "batch_std"):
        good, bad = advantages(Recipe(advantage=kind), np.array(right), n)
        centred = [np.array([1.0] * r + [0.0] * (n - r)) - r / n for r in right]
        batch_scale = np.sqrt(np.mean(np.concatenate(centred) ** 2))
        for i, (r, rows) in enumerate(zip(right, centred, strict=True)):
            scale = {"group_std": rows.std(ddof=1), "group_mean": 1.0, "batch_std": batch_scale}[kind]
            expected = rows / scale if scale > 0 else rows
            got = np.array([good[i]] * r + [bad[i]] * (n - r))
            np.testing.assert_allclose(got, expected, atol=1e-12)


def objective(recipe: Recipe, batch: CountBatch, logits: np.ndarray, base_log: np.ndarray) -> float:
    """The objective summed rollout by rollout, with the stop-gradients made explicit by `frozen` below."""
    policy = softmax(logits.copy())
    total, kept = 0.0, 0
    for p in range(P):
        kept += int(batch.mixed_P[p])
        for k in range(K):
            a = batch.advantage_right_P[p] if k == batch.correct_P[p] else batch.advantage_wrong_P[p]
            ratio = policy[p, k] / batch.sampler_PK[p, k]
            if recipe.loss == "reinforce":
                term = a * np.log(policy[p, k])
            elif recipe.loss == "cispo":
                frozen = min(FROZEN[p, k] / batch.sampler_PK[p, k], recipe.ratio_cap)
                term = a * frozen * np.log(policy[p, k])
            else:
                clipped = np.clip(ratio, 1 - recipe.clip_low, 1 + recipe.clip_high)
                term = min(ratio * a, clipped * a)
            total += batch.counts_PK[p, k] * term
    n = batch.counts_PK[0].sum()
    total /= n * (P if recipe.zero_variance_filter == "off" else kept)
    for p in range(P):
        if recipe.zero_variance_filter == "all" and not batch.mixed_P[p]:
            continue
        weight = 1 / (kept if recipe.zero_variance_filter == "all" else P)
        log = np.log(policy[p])
        total -= weight * recipe.kl_coef * float(policy[p] @ (log - base_log[p]))
        total -= weight * recipe.entropy_coef * float(policy[p] @ log)
    return total


FROZEN = np.empty((P, K))


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": "reinforce", "advantage": "group_mean"},
        {"loss": "reinforce", "advantage": "none"},
        {"loss": "clip", "advantage": "group_std", "updates_per_batch": 4},
        {
            "loss": "clip",
            "advantage": "group_std",
            "clip_high": 0.28,
            "zero_variance_filter": "policy",
            "updates_per_batch": 2,
        },
        {"loss": "gspo", "advantage": "group_std", "clip_low": 0.05, "clip_high": 0.05, "updates_per_batch": 2},
        {"loss": "cispo", "advantage": "batch_std", "ratio_cap": 1.3, "updates_per_batch": 2},
        {"loss": "clip", "advantage": "group_std", "kl_coef": 0.3, "entropy_coef": 0.2},
        {"loss": "clip", "advantage": "group_std", "kl_coef": 0.3, "entropy_coef": 0.2, "zero_variance_filter": "all"},
    ],
    ids=lambda f: "-".join(f"{v}" for v in f.values()),
)
def test_gradient_is_that_of_the_objective(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    recipe = Recipe(**fields)
    n = 9
    sampler = softmax(rng.standard_normal((P, K)))
    counts = rng.multinomial(n, sampler)
    correct = rng.integers(0, K, P)
    counts[0] = 0
    counts[0, correct[0]] = n  # one group that is all right
    right = counts[np.arange(P), correct]
    good, bad = advantages(recipe, right, n)
    batch = CountBatch(counts, correct, sampler, good, bad, (right > 0) & (right < n))
    shift = 0.25 if recipe.updates_per_batch > 1 else 0.0
    logits = np.log(sampler) + shift * rng.standard_normal((P, K))
    base_log = np.log(softmax(rng.standard_normal((P, K))))
    FROZEN[:] = softmax(logits.copy())
    got = logit_gradient(recipe, batch, softmax(logits.copy()), base_log)
    numeric = np.empty_like(logits)
    for index in np.ndindex(P, K):
        step = np.zeros_like(logits)
        step[index] = 1e-6
        up, down = (objective(recipe, batch, logits + s, base_log) for s in (step, -step))
        numeric[index] = (up - down) / 2e-6
    np.testing.assert_allclose(got, numeric, atol=2e-8)


def test_subsample_keeps_the_right_number_and_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    counts = np.array([[10, 0, 6], [1, 14, 1]])
    drawn = np.stack([subsample(counts, 4, rng) for _ in range(4000)])
    assert (drawn.sum(axis=2) == 4).all()
    assert (drawn <= counts).all()
    np.testing.assert_allclose(drawn.mean(axis=0), counts * 4 / 16, atol=0.06)


def test_learning_rate_rules() -> None:
    for scaling, expected in (("constant", 1.0), ("linear", 8.0), ("sqrt", 8**0.5)):
        recipe = Recipe(learning_rate=1e-6, lr_scaling=scaling, warmup_steps=10)
        assert learning_rate(recipe, batch_size=8192, step=99) == pytest.approx(1e-6 * expected)
        assert learning_rate(recipe, batch_size=8192, step=0) == pytest.approx(1e-7 * expected)


def test_named_recipes_follow_table_1() -> None:
    easy, hard = make_recipe({"name": "isocompute-easy"}), make_recipe({"name": "isocompute-hard"})
    assert easy.kl_coef > 0 and easy.entropy_coef > 0
    assert hard.kl_coef == hard.entropy_coef == 0
    for recipe in (easy, hard):
        assert (recipe.zero_variance_filter, recipe.lr_scaling, recipe.warmup_steps) == ("off", "sqrt", 10)
        assert (recipe.learning_rate, recipe.lr_reference_batch) == (1e-6, 1024)
    assert all(isinstance(make_recipe({"name": name}), Recipe) for name in RECIPES)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"name": "nope"}, "recipe.name"),
        ({"learning_rat": 1}, "recipe.learning_rat"),
        ({"learning_rate": -1}, "recipe.learning_rate"),
        ({"advantage": "none", "zero_variance_filter": "policy"}, "zero_variance_filter needs a group baseline"),
    ],
)
def test_bad_recipes_are_refused(table: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_recipe(table)


@pytest.mark.parametrize("field", ["grad_clip", "tis_cap", "no_positive_resampling"])
def test_none_switches_an_optional_field_off(field: str) -> None:
    """Whatever its default is."""
    assert getattr(make_recipe({"name": "scalerl", field: "none"}), field) is None
