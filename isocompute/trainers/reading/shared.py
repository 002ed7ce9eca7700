"""What several readers do alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isocompute.trainers.common import NO_CLIP
from isocompute.trainers.reading.setup import Odd

__all__ = ["gradient_norm", "group_filter", "in_batches", "invert", "steps_from_epochs", "times"]


def invert(names: Mapping[str, str]) -> dict[str, str]:
    """A trainer's word for each of ours, turned round; the first of ours stands."""
    out: dict[str, str] = {}
    for ours, theirs in names.items():
        out.setdefault(theirs, ours)
    return out


def gradient_norm(value: float | None) -> float | None:
    """The largest gradient norm, `None` where it is never reached or clipping is off."""
    return None if value is None or value <= 0 or value >= NO_CLIP else value


def times(*factors: int | None) -> int | None:
    """A product, unknown where a factor is."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def in_batches(updates: int | None, updates_per_batch: float | None) -> int | None:
    """Optimiser steps as batches, rounded up: a trainer's warm-up may count the former, a recipe's counts the latter.

    >>> in_batches(20, 2), in_batches(10, 16), in_batches(10, None)
    (10, 1, 10)
    """
    return None if updates is None else math.ceil(updates / (updates_per_batch or 1))


def group_filter(refills: bool, odd: list[Odd]) -> str:
    """`refill` where zero-variance groups are replaced by freshly sampled ones."""
    if not refills:
        return "off"
    odd.append(Odd("refill", "zero-variance groups are sampled again: more rollouts are spent than C counts."))
    return "refill"


def steps_from_epochs(
    epochs: int | None, problems: int | None, batch: int | None, odd: list[Odd], key: str
) -> int | None:
    """M where a config counts passes over the data: epochs · (D // Bp)."""
    if epochs and problems and batch and problems >= batch:
        return epochs * (problems // batch)
    size = "" if problems is None else f" ({problems} problems are under one batch)"
    odd.append(
        Odd("steps_unknown", f"M is {key} = {epochs} passes over the data{size}; say --problems, or set a step count.")
    )
    return None
