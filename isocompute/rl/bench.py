"""How fast this machine trains a model, and how far that is from what the machine could do.

Two bounds are measured, not looked up: the bytes a second of a large copy and the operations a second of a large matrix
product. Sampling must read every key and value of a row once a token, and the weights once a token: bytes over
bandwidth is the least time it can take. Training does six operations a parameter and token: operations over the
product's rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from isocompute.core.errors import InputError
from isocompute.rl.decoder import Decoder
from isocompute.rl.training import LmTraining

__all__ = ["WARM_UP", "Bench", "Machine", "bench", "measure_machine"]

WARM_UP = 2
"""Updates before those that are timed."""


@dataclass(frozen=True)
class Machine:
    """What a device can do, as measured here."""

    device: str
    bytes_per_second: float
    operations_per_second: float


@dataclass(frozen=True)
class Bench:
    """Medians over steps of one batch size."""

    rollouts: int
    fast: bool
    step_seconds: float
    sampling_seconds: float
    rollouts_per_second: float
    tokens_per_second: float
    sampling_share_of_bandwidth: float
    training_share_of_peak: float


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """A large copy and a large product."""
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


def bench(training: LmTraining, machine: Machine, *, steps: int) -> Bench:
    """Time the whole step and sampling alone; the training goes on meanwhile, its weights are of no interest."""
    device = training.model.device
    rollouts = training.cell.batch_size
    started = training.tokens

    def update() -> None:
        if not training.update():
            raise InputError("lm bench: no problem is left to train on; use fewer --steps, or more --problems.")

    whole = _median(update, device, repeats=steps, warm=WARM_UP)
    training.settle()
    tokens = (training.tokens - started) / (steps + WARM_UP)
    index_P = np.arange(training.cell.problems_per_batch)
    sampling = _median(lambda: training.sample_only(index_P), device, repeats=steps, warm=1)
    prompt = float(np.mean([len(p) for p in training.tasks.train.prompts]))
    length = tokens / rollouts
    must_read = sampling_bytes(training.decoder, rollouts=rollouts, prompt=prompt, length=length)
    operations = 6 * _parameters(training.decoder) * rollouts * (prompt + length)
    return Bench(
        rollouts=rollouts,
        fast=training.captured,
        step_seconds=whole,
        sampling_seconds=sampling,
        rollouts_per_second=rollouts / whole,
        tokens_per_second=tokens / whole,
        sampling_share_of_bandwidth=must_read / machine.bytes_per_second / sampling,
        training_share_of_peak=operations / machine.operations_per_second / max(whole - sampling, 1e-9),
    )


def sampling_bytes(decoder: Decoder, *, rollouts: int, prompt: float, length: float) -> float:
    """Keys and values of every row once a token, and the weights once a token."""
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
