"""How fast this machine trains a model, compared with what its hardware allows.

Both hardware limits are measured: bytes per second of a large copy, and operations per second of a large matrix
product. For each token, sampling reads all keys and values of the sequence and all weights once. Its lower bound is
these bytes over the bandwidth. Training takes six operations per parameter and token; its lower bound is these
operations over the rate of the matrix product.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError
from isocompute.core.recipe import make_recipe
from isocompute.rl.engine import LmEngine
from isocompute.rl.loop import Training
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.setup import set_up

WARM_UP = 2
"""Updates before those that are timed."""


@dataclass(frozen=True)
class Machine:
    """Measured limits of a device."""

    device: str
    bytes_per_second: float
    operations_per_second: float


@dataclass(frozen=True)
class Bench:
    """Speed of training at one batch size, as medians over steps."""

    rollouts: int
    step_seconds: float
    sampling_seconds: float
    rollouts_per_second: float
    tokens_per_second: float
    sampling_share_of_bandwidth: float
    training_share_of_peak: float


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Time a large copy and a large matrix product."""
    big = device.type == "cuda"
    a = torch.empty(2**30 if big else 2**26, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    size = 8192 if big else 1024
    x = torch.randn(size, size, device=device).to(dtype)
    name = torch.cuda.get_device_name(device) if big else f"CPU, {torch.get_num_threads()} threads"
    return Machine(
        name,
        2 * a.numel() / _median(lambda: b.copy_(a), device, repeats=5),
        2 * size**3 / _median(lambda: x @ x, device, repeats=5),
    )


def prepared_training(
    *,
    model: str,
    problems: str,
    recipe: str,
    device: str,
    problems_per_batch: int,
    rollouts_per_problem: int,
    updates: int,
) -> Training:
    """A training run that is ready to make this many updates, outside of any run folder."""
    cell = Cell(
        name="bench",
        problems_per_batch=problems_per_batch,
        rollouts_per_problem=rollouts_per_problem,
        update_steps=updates + make_recipe({"name": recipe}).pipeline_steps,  # a pipeline drains at its end
        seed=0,
        problems={
            "source": problems,
            "size": max(2 * problems_per_batch, 512) if problems.startswith("chain") else None,
        },
        recipe={"name": recipe},
        evaluation={"points": 2, "samples": 4},
        engine={"model": model, "device": device},
    )
    LmEngine().check(cell)
    return Training(set_up(cell))


def bench(training: Training, machine: Machine, *, steps: int) -> Bench:
    """Time whole steps, and sampling alone. The steps do update the weights of `training`."""
    device = training.base.device
    rollouts = training.cell.batch_size
    started = training.tokens

    sampled: list[float] = []

    def update() -> None:
        before = training.sampling_seconds
        if not training.update():
            raise InputError("lm bench: no problem is left to train on; use fewer --steps, or more --problems.")
        sampled.append(training.sampling_seconds - before)

    whole = _median(update, device, repeats=steps, warm=WARM_UP)
    tokens = (training.tokens - started) / (steps + WARM_UP)
    sampling = float(np.median(sampled[WARM_UP:]))
    prompt = float(np.mean([len(p) for p in training.tasks.train.prompts]))
    length = tokens / rollouts
    must_read = sampling_bytes(training.decoder, rollouts=rollouts, prompt=prompt, length=length)
    operations = 6 * _parameters(training.decoder) * rollouts * (prompt + length)
    return Bench(
        rollouts=rollouts,
        step_seconds=whole,
        sampling_seconds=sampling,
        rollouts_per_second=rollouts / whole,
        tokens_per_second=tokens / whole,
        sampling_share_of_bandwidth=must_read / machine.bytes_per_second / sampling,
        training_share_of_peak=operations / machine.operations_per_second / max(whole - sampling, 1e-9),
    )


def sampling_bytes(decoder: Decoder, *, rollouts: int, prompt: float, length: float) -> float:
    """Bytes that sampling must read: for each token, all keys and values of its row and all weights."""
    config, size = decoder.config, decoder.embed_tokens.weight.element_size()
    slot = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size
    cache = rollouts * slot * (length * prompt + length * (length - 1) / 2)
    return cache + length * _parameters(decoder) * size


def _parameters(decoder: Decoder) -> int:
    return sum(p.numel() for p in decoder.parameters())


def _median(run: Callable[[], object], device: torch.device, *, repeats: int, warm: int = 1) -> float:
    times = []
    for number in range(warm + repeats):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        if number >= warm:
            times.append(time.perf_counter() - start)
    return float(np.median(times))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
