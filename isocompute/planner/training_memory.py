"""Whether training fits the GPUs: AdamW in mixed precision, split over all of them (FSDP, ZeRO stage 3).

Sixteen bytes a parameter: weights and gradient in bf16 (4), fp32 master weights (4) and two fp32 moments (8). Trainers
that keep weights and gradient in fp32 and no other master (veRL's FSDP) come to the same 16; Megatron's fp32 gradient
makes it 18. Activations, a reference model and what the sampler keeps come on top, so this is the least.
"""

from __future__ import annotations

from isocompute.core.errors import InputError
from isocompute.planner.advice import Warned
from isocompute.planner.cost import ELEMENT, USABLE
from isocompute.planner.hardware import Gpu
from isocompute.planner.model_shape import ModelShape

__all__ = ["TRAINING_BYTES", "check_training_memory"]

TRAINING_BYTES = 16
ON_GPU_BYTES = 2 * ELEMENT
"""What stays on the GPUs where the optimiser's state is offloaded: weights and gradient."""


def check_training_memory(shape: ModelShape, gpu: Gpu, count: int) -> list[Warned]:
    """Refuse what does not fit even with the optimiser's state offloaded; warn of what needs that."""
    there = USABLE * gpu.memory * count
    all_of_it, least = TRAINING_BYTES * shape.parameters, ON_GPU_BYTES * shape.parameters
    if all_of_it <= there:
        return []
    enough = _enough(all_of_it, gpu)
    what = (
        f"{shape.parameters / 1e9:.1f}B parameters take {all_of_it / 1e9:,.0f} GB to train (weights, gradient, AdamW) "
        f"and {count} × {gpu.name} has {there / 1e9:,.0f} GB to use"
    )
    if least > there:
        raise InputError(
            f"{what}, too little even with AdamW's state offloaded ({least / 1e9:,.0f} GB); use at least "
            f"{_enough(least, gpu)}, {enough} to do without offloading, or give the throughput of your setup "
            "(--rollouts-per-second)."
        )
    return [
        Warned("training_memory", f"{what}: offload AdamW's state, which is slower than priced here, or use {enough}")
    ]


def _enough(needed: float, gpu: Gpu) -> int:
    """The fewest GPUs, a power of two as batches are, that hold so many bytes."""
    count = 1
    while count * USABLE * gpu.memory < needed:
        count *= 2
    return count
