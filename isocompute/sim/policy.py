"""The policy: a softmax over responses whose logits are the base's plus learned weights, and its AdamW."""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.core.recipe import Recipe
from isocompute.sim.world import WorldSpec, softmax

__all__ = ["Policy"]


class Policy:
    """Shared weights (features × responses) and, where features are not all shared, weights of single problems.

    Problems outside the training set have no weights of their own: they only see the shared part.
    """

    def __init__(self, spec: WorldSpec, problems: int, recipe: Recipe) -> None:
        self.shared_scale = np.sqrt(spec.interference * spec.features)  # features have length about 1
        self.own_scale = np.sqrt((1.0 - spec.interference) * spec.features)
        self.recipe = recipe
        self.steps = 0
        self.shared_FK = np.zeros((spec.features, spec.responses))
        self.moments_2FK = np.zeros((2, spec.features, spec.responses))
        own = (problems if self.own_scale > 0 else 0, spec.responses)
        self.own_PK = np.zeros(own)
        self.own_moments_2PK = np.zeros((2, *own))

    def probabilities(self, features_PF: Array, base_PK: Array, index_P: Ints | None = None) -> Array:
        """π for problems; `index_P` are their places in the training set, None for held-out ones."""
        logits_PK = (self.shared_scale * features_PF) @ self.shared_FK
        logits_PK += base_PK
        if index_P is not None and self.own_scale > 0:
            logits_PK += self.own_scale * self.own_PK[index_P]
        return softmax(logits_PK)

    def ascend(self, features_PF: Array, gradient_PK: Array, index_P: Ints, rate: float) -> float:
        """One AdamW step along a gradient by the logits; returns the gradient's norm before clipping."""
        recipe = self.recipe
        shared_FK = (self.shared_scale * features_PF).T @ gradient_PK
        norm = float(np.sqrt((shared_FK * shared_FK).sum()))
        own_PK = self.own_scale * gradient_PK if self.own_scale > 0 else None
        if own_PK is not None:
            norm = float(np.hypot(norm, np.linalg.norm(own_PK)))
        scale = 1.0 if recipe.grad_clip is None or norm <= recipe.grad_clip else recipe.grad_clip / norm
        self.steps += 1
        _step(self.shared_FK, self.moments_2FK, shared_FK * scale, recipe, rate, self.steps)
        if own_PK is not None:
            # Only the rows of this batch move, as an embedding's do under a sparse optimiser.
            rows_PK, moments_2PK = self.own_PK[index_P], self.own_moments_2PK[:, index_P]
            _step(rows_PK, moments_2PK, own_PK * scale, recipe, rate, self.steps)
            self.own_PK[index_P], self.own_moments_2PK[:, index_P] = rows_PK, moments_2PK
        return norm

    def copy(self) -> Policy:
        """The same weights, for looking back after a step."""
        out = object.__new__(Policy)
        out.__dict__.update(self.__dict__)
        out.shared_FK, out.own_PK = self.shared_FK.copy(), self.own_PK.copy()
        return out

    def state(self) -> dict[str, np.ndarray]:
        """Arrays of a checkpoint."""
        return {
            "shared": self.shared_FK,
            "moments": self.moments_2FK,
            "own": self.own_PK,
            "own_moments": self.own_moments_2PK,
        }

    def restore(self, arrays: dict[str, np.ndarray], steps: int) -> None:
        """Go on from a checkpoint."""
        self.shared_FK, self.moments_2FK = arrays["shared"].copy(), arrays["moments"].copy()
        self.own_PK, self.own_moments_2PK = arrays["own"].copy(), arrays["own_moments"].copy()
        self.steps = steps


def _step(weights: Array, moments_2: Array, gradient: Array, recipe: Recipe, rate: float, step: int) -> None:
    """AdamW's ascent in place (Loshchilov & Hutter 2019), or a plain gradient step."""
    if recipe.optimizer == "sgd":
        weights += rate * gradient
        return
    first, second = moments_2
    first *= recipe.beta1
    first += (1.0 - recipe.beta1) * gradient
    second *= recipe.beta2
    second += (1.0 - recipe.beta2) * gradient * gradient
    correction = np.sqrt(1.0 - recipe.beta2**step) / (1.0 - recipe.beta1**step)
    if recipe.weight_decay:
        weights *= 1.0 - rate * recipe.weight_decay
    weights += (rate * correction) * first / (np.sqrt(second) + recipe.epsilon)
