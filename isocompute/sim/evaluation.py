"""What a point of the simulator holds: exact and sampled metrics, the spread of pass rates, interference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.core.metrics import avg_at_k, best_at_k, mean_with_error, worst_at_k
from isocompute.sim.policy import Policy
from isocompute.sim.world import Problems, World, right_share

__all__ = ["evaluate", "interference", "pass_rates"]

HISTOGRAM_BINS = 20
_PROBES = 256
_NEVER = 0.01
"""A problem counts as never solved below this pass rate."""


def pass_rates(policy: Policy, problems: Problems) -> Array:
    """Exact pass rates on held-out problems."""
    return right_share(policy.probabilities(problems.features_PF, problems.base_PK), problems.correct_P)


def evaluate(
    policy: Policy,
    world: World,
    base_log_PK: Array,
    *,
    samples: int,
    ks: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Metrics on the validation set, sampled under their plain names and exact under `exact/`; `ood/` out of
    distribution; entropy, KL to the base and the spread of pass rates on the training set.
    """
    rates_P = pass_rates(policy, world.validation)
    correct_P = rng.binomial(samples, rates_P)
    samples_P = np.full(len(rates_P), samples)
    out: dict[str, Any] = {}
    for k in ks:
        for name, metric in (("avg", avg_at_k), ("best", best_at_k), ("worst", worst_at_k)):
            estimate = mean_with_error(metric(correct_P, samples_P, k=k))
            out[f"{name}@{k}"] = estimate.value
            if name == "avg" and np.isfinite(estimate.standard_error):
                out[f"{name}@{k}/error"] = estimate.standard_error
        out |= {f"exact/{name}@{k}": value for name, value in _exact(rates_P, k).items()}
        if len(world.out_of_distribution):
            outside_P = pass_rates(policy, world.out_of_distribution)
            out |= {f"ood/{name}@{k}": value for name, value in _exact(outside_P, k).items()}
    train = world.train
    policy_PK = policy.probabilities(train.features_PF, train.base_PK, np.arange(len(train)))
    log_PK = np.log(np.maximum(policy_PK, 1e-300))
    out["entropy"] = -float((policy_PK * log_PK).sum()) / len(train)
    out["kl"] = float(np.maximum(0.0, (policy_PK * (log_PK - base_log_PK)).sum() / len(train)))
    train_P = right_share(policy_PK, train.correct_P)
    out["train/exact"] = float(train_P.mean())
    out["train/zero_pass"] = float((train_P < _NEVER).mean())
    out["train/pass_rates"] = np.histogram(train_P, bins=HISTOGRAM_BINS, range=(0.0, 1.0))[0].tolist()
    return out


def _exact(rates_P: Array, k: int) -> dict[str, float]:
    return {
        "avg": float(rates_P.mean()),
        "best": float((1.0 - (1.0 - rates_P) ** k).mean()),
        "worst": float((rates_P**k).mean()),
    }


def interference(before: Policy, after: Policy, train: Problems, index_P: Ints) -> float:
    """How far one update moved the pass rates of problems outside its batch, relative to those inside it.

    0: problems do not touch each other; 1: an update moves the others as much as its own.
    """
    outside_P = np.setdiff1d(np.arange(min(len(train), _PROBES + len(index_P))), index_P)[:_PROBES]
    if not len(outside_P):
        return float("nan")

    def moved(places_P: Ints) -> float:
        part = train.take(places_P)
        rates = [
            right_share(policy.probabilities(part.features_PF, part.base_PK, places_P), part.correct_P)
            for policy in (before, after)
        ]
        return float(np.abs(rates[1] - rates[0]).mean())

    inside = moved(index_P)
    return moved(outside_P) / inside if inside > 1e-6 else float("nan")
