"""How busy the sampler is: the ledger against a stream of response lengths, on a clock that counts decode steps.

A decode step gives every occupied slot one token and takes one tick, however many are occupied: decoding is bound by
memory. The trainer is beside the sampler (another device or stream) and takes a fixed number of ticks for an update.
Synchronous training is the same with k = 0: a batch is sampled, then the sampler waits for the update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from isocompute.rl.rollout.pipeline import Ledger

__all__ = ["Timing", "run_clock"]


@dataclass(frozen=True)
class Timing:
    """What a run on the clock came to."""

    ticks: int
    updates: int
    busy: float
    """Share of slots × ticks in which a token was sampled."""
    oldest: int
    """Most updates between a group's first token and its training."""
    staleness: float
    """The same, on average over groups."""


def run_clock(
    lengths: Iterator[int],
    *,
    problems_per_batch: int,
    rollouts_per_problem: int,
    steps: int,
    updates: int,
    train_ticks: int,
    slots: int | None = None,
) -> Timing:
    """PipelineRL-`steps` for this many updates; by default there are slots for one batch."""
    n = rollouts_per_problem
    slots = slots or problems_per_batch * n
    ledger = Ledger(problems_per_batch=problems_per_batch, steps=steps)
    left_S = np.zeros(slots, dtype=np.int64)  # tokens still to come
    seat_S = np.full(slots, -1)
    ticks = worked = started = done = oldest = age = trained = 0
    version = next_update = 0  # of the sampler's weights; of the update that is to start next
    finishes: int | None = None  # when the update that is running will be done
    while done < updates:
        free_F = np.flatnonzero(seat_S < 0)
        for at in range(min(len(free_F) // n, ledger.room(version=version, next_update=next_update))):
            group = ledger.start(number=started, problem=0, version=version, rollouts=n)
            started += 1
            here = free_F[at * n : (at + 1) * n]
            seat_S[here] = group.seat
            left_S[here] = [next(lengths) for _ in range(n)]
        running_S = seat_S >= 0
        jump = int(left_S[running_S].min()) if running_S.any() else None
        if finishes is not None:
            jump = finishes - ticks if jump is None else min(jump, finishes - ticks)
        assert jump is not None, "nothing is sampled and nothing trained"
        ticks += jump
        worked += jump * int(running_S.sum())
        left_S[running_S] -= jump
        for slot in np.flatnonzero(running_S & (left_S == 0)):
            ledger[int(seat_S[slot])].unfinished -= 1
            seat_S[slot] = -1
        if finishes is not None and ticks >= finishes:
            finishes, done, version = None, done + 1, next_update
        if finishes is None and (batch := ledger.batch(next_update)):
            ages = [next_update - group.version for group in batch]
            oldest, age, trained = max(oldest, *ages), age + sum(ages), trained + len(batch)
            ledger.remove(batch)
            next_update += 1
            finishes = ticks + train_ticks
            if train_ticks == 0:
                finishes, done, version = None, done + 1, next_update
    return Timing(ticks, done, worked / (slots * ticks), oldest, age / trained)
