"""Which problems a batch holds: epochs in random order, without problems that are solved for good."""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Ints

__all__ = ["ProblemSampler"]


_ROUNDING = 1e-9
""".55 of 100 is 55, whatever floating point makes of it."""


class ProblemSampler:
    """Draws batches without replacement inside an epoch; a new order each epoch.

    With a `retire_at`, a problem whose pass rate over all its rollouts so far reaches it is never drawn again
    (ScaleRL's no-positive-resampling).
    """

    def __init__(self, problems: int, retire_at: float | None) -> None:
        self.retire_at = retire_at
        self.order_P = np.empty(0, dtype=np.int64)
        self.at = 0
        self.right_P = np.zeros(problems, dtype=np.int64)
        self.seen_P = np.zeros(problems, dtype=np.int64)
        self.active_P = np.ones(problems, dtype=np.bool_)

    @property
    def retired(self) -> int:
        """Problems that will not be drawn again."""
        return int((~self.active_P).sum())

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """The next batch; smaller where fewer problems are left, empty where none is."""
        left = self.order_P[self.at : self.at + count]
        self.at += len(left)
        if len(left) == count:
            return left
        order_P = rng.permutation(np.flatnonzero(self.active_P))
        # A batch that spans two epochs holds no problem twice.
        fresh = order_P[~np.isin(order_P, left)][: count - len(left)] if len(left) else order_P[: count - len(left)]
        rest = order_P[~np.isin(order_P, fresh)] if len(left) else order_P[len(fresh) :]
        self.order_P, self.at = rest, 0
        return np.concatenate([left, fresh])

    def record(self, index_P: Ints, right_P: Ints, rollouts: int) -> None:
        """Keep score, and retire what is solved."""
        if self.retire_at is None:
            return
        np.add.at(self.right_P, index_P, right_P)  # a problem may be there twice
        np.add.at(self.seen_P, index_P, rollouts)
        done_P = self.right_P[index_P] >= self.retire_at * self.seen_P[index_P] - _ROUNDING
        if done_P.any():
            self.active_P[index_P[done_P]] = False
            rest = self.order_P[self.at :]
            self.order_P, self.at = rest[self.active_P[rest]], 0

    def state(self) -> dict[str, np.ndarray]:
        """Arrays of a checkpoint."""
        return {"order": self.order_P, "right": self.right_P, "seen": self.seen_P, "active": self.active_P}

    def restore(self, arrays: dict[str, np.ndarray], at: int) -> None:
        """Go on from a checkpoint."""
        self.order_P, self.at = arrays["order"].copy(), at
        self.right_P, self.seen_P = arrays["right"].copy(), arrays["seen"].copy()
        self.active_P = arrays["active"].copy()
