"""The machine a plan runs on, and how an update's Bp · n rollouts are shared out over it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isocompute.core.errors import InputError
from isocompute.trainers.plan_input import Plan

__all__ = ["Hardware", "Share", "share_out"]

MICRO_BATCH = 8
"""Sequences a device takes at once where no limit is given; gradients of several add up."""


@dataclass(frozen=True)
class Hardware:
    """GPUs, and what one of them holds at a time while training."""

    gpus: int = 8
    gpus_per_node: int = 8
    max_sequences: int | None = None
    """Sequences (prompt and response) on one device at a time."""
    max_tokens: int | None = None
    """Tokens on one device at a time, for trainers that pack; others take as many whole sequences as fit."""

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node", "max_sequences", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} = {value}: at least 1.")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            below = self.gpus // self.gpus_per_node * self.gpus_per_node
            raise InputError(
                f"{self.gpus} GPUs are no whole number of nodes of {self.gpus_per_node}; take {below} or "
                f"{below + self.gpus_per_node}, or say --gpus-per-node."
            )

    @property
    def nodes(self) -> int:
        """Machines."""
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_on_node(self) -> int:
        """GPUs used on each machine."""
        return self.gpus // self.nodes


@dataclass(frozen=True)
class Share:
    """One device's part of an update: gpus · micro_batch · accumulation = Bp · n."""

    gpus: int
    micro_batch: int
    accumulation: int
    tokens: int | None
    """Tokens a device takes at once, where that is the limit."""

    @property
    def rollouts(self) -> int:
        """Rollouts of an update on this device."""
        return self.micro_batch * self.accumulation


def share_out(plan: Plan, hardware: Hardware) -> Share:
    """Equal parts on every GPU, in the largest micro-batches that fit and divide them.

    Raises InputError with the nearest (Bp, n) that divide where Bp · n does not.
    """
    if plan.batch_size % hardware.gpus:
        raise InputError(_indivisible(plan, hardware.gpus))
    rollouts = plan.batch_size // hardware.gpus
    limit = hardware.max_sequences or MICRO_BATCH
    if hardware.max_tokens is not None:
        sequence = plan.max_prompt_length + plan.max_response_length
        limit = hardware.max_tokens // sequence
        if limit < 1:
            raise InputError(
                f"{hardware.max_tokens} tokens a device hold no sequence of {plan.max_prompt_length} + "
                f"{plan.max_response_length} tokens; raise --per-device or lower max_response_length."
            )
    micro = max(size for size in range(1, min(limit, rollouts) + 1) if rollouts % size == 0)
    return Share(hardware.gpus, micro, rollouts // micro, hardware.max_tokens)


def _indivisible(plan: Plan, gpus: int) -> str:
    near = [f"{bp} × {n}" for bp, n in neighbours(plan.problems_per_batch, plan.rollouts_per_problem, gpus)]
    return (
        f"Bp · n = {plan.problems_per_batch} × {plan.rollouts_per_problem} = {plan.batch_size} rollouts are no equal "
        f"parts on {gpus} GPUs; the nearest plans that are: {', '.join(near)}. Plan again with one of them: the "
        "learning rate and the number of updates follow from it."
    )


def neighbours(problems: int, rollouts: int, gpus: int) -> list[tuple[int, int]]:
    """The nearest (Bp, n) below and above, changing one of the two, whose product divides by `gpus`; nearest first."""
    problem_step = gpus // math.gcd(gpus, rollouts)
    rollout_step = gpus // math.gcd(gpus, problems)
    found = [(bp, rollouts) for bp in _around(problems, problem_step)]
    found += [(problems, n) for n in _around(rollouts, rollout_step) if n > 1]
    return sorted(found, key=lambda pair: (abs(pair[0] * pair[1] - problems * rollouts), pair))


def _around(value: int, step: int) -> list[int]:
    below = value // step * step
    return [x for x in (below, below + step) if x >= 1]
