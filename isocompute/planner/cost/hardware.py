"""The cost of a step on GPUs: a roofline of prefill, decode and training (FLOPs over peak, bytes over bandwidth).

A step samples B = Bp · n responses and updates on them, one phase after the other on the same GPUs. For each phase,
seconds = max(FLOPs / peak, bytes / bandwidth) / efficiency. The efficiency is measured (`throughput.calibrate`), given,
or a default.

- *Prefill*: a prompt is computed once for its n rollouts (prefix caching, on by default in vLLM and SGLang).
- *Decode*: every step reads the weights and the cache of every running response. Of E experts, a batch of b responses
  is expected to read E · (1 - (1 - k/E)^b). The memory that the weights leave to the cache limits how many responses
  run at once; the others wait. A copy of the model is spread over the power of two of GPUs that decodes fastest. More
  GPUs leave more memory to the cache, but decode less efficiently (`SPREAD`).
- *Training*: FLOPs of three forward passes (one forward, two backward) over prompt and response. Recomputing
  activations adds one pass, and so does each scoring pass (old log-probs, a reference model).

Weights, cache and activations are bf16. Training splits everything over all GPUs: AdamW in mixed precision, FSDP or
ZeRO stage 3. Other communication between GPUs is not modelled; it is part of the efficiency.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.planner.cost.model import ModelShape
from isocompute.planner.warnings import PlanWarning

_PLAIN_WORDS = re.compile(r"nvidia|geforce|rtx|tesla|hgx|hbm[23]e?|sxm[45]?|pcie")
"""Words in names that do not identify a chip."""
_SAME_MEMORY = 0.1
"""Sizes in names are rounded: a B200 is sold as 180 and as 192 GB."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator: memory in bytes, bandwidth in bytes per second, peak in FLOP per second."""

    name: str
    memory: float
    bandwidth: float
    peak: float
    source: str


@cache
def gpus() -> dict[str, Gpu]:
    """The table of GPUs, by name."""
    table = tomllib.loads(files("isocompute.planner.cost").joinpath("gpus.toml").read_text(encoding="utf-8"))
    return {
        name: Gpu(name, row["memory"] * 1e9, row["bandwidth"] * 1e9, row["peak"] * 1e12, row["source"])
        for name, row in table.items()
    }


def find_gpu(name: str) -> Gpu:
    """A GPU by name, however it is written (`h200`, `RTX4090`, `A100-SXM4-80GB`, `NVIDIA A100 80GB PCIe`).

    A memory size in the name must match the GPU's. `PCIe` selects the PCIe card if the table has one of its own.

    >>> find_gpu("NVIDIA RTX 4090").memory, find_gpu("NVIDIA A100 80GB PCIe").name
    (24000000000.0, 'A100-PCIe')
    """
    wanted = _Written.of(name)
    chips = {each: _Written.of(each).chip for each in gpus()}
    alike = [gpu for each, gpu in gpus().items() if chips[each] == wanted.chip]
    fitting = [gpu for gpu in alike if wanted.memory is None or abs(gpu.memory / wanted.memory - 1) < _SAME_MEMORY]
    if fitting:
        return min(fitting, key=lambda gpu: _Written.of(gpu.name).pcie != wanted.pcie)  # the first row of a tie
    near = set(difflib.get_close_matches(wanted.chip, dict.fromkeys(chips.values()), n=2))
    names = [each for each, chip in chips.items() if chip in near or chip == wanted.chip]
    hint = f"; near it {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else ""
    raise InputError(f"gpu '{name}' is not one of {', '.join(gpus())}{hint}: name one, or give the throughput instead.")


@dataclass(frozen=True)
class _Written:
    """The chip, memory and card that a GPU's name states."""

    chip: str
    memory: float | None
    pcie: bool

    @classmethod
    def of(cls, name: str) -> _Written:
        words = re.split(r"[^a-z0-9]+", re.sub(r"(\d+)\s*gb?\b", r" \1gb ", name.lower()))
        sizes = [float(word.removesuffix("gb")) * 1e9 for word in words if re.fullmatch(r"\d+gb", word)]
        chip = "".join(w for w in words if not _PLAIN_WORDS.fullmatch(w) and not re.fullmatch(r"\d+gb", w))
        return cls(re.sub(r"^(geforce)?rtx(?=\d)", "", chip), sizes[0] if sizes else None, "pcie" in words)


ELEMENT = 2
"""Bytes of a bf16 number."""
USABLE = 0.9
"""Share of a GPU's memory for weights and cache while generating, vLLM's default `gpu_memory_utilization`."""
SPREAD = 0.8
"""Share of the decoding speed that remains each time a copy is spread over twice as many GPUs.

They exchange activations twice per layer. It is a rule of thumb, like the defaults of `Efficiency`."""
MACHINE = 8
"""GPUs per machine: a copy is spread over more only if it does not fit on one machine."""
TRAINING_PASSES = 4
"""Forward passes with the cost of an update: a forward, a backward (two), and a second forward.

The latter is due to gradient checkpointing, which TRL and veRL's examples use."""
TRAINING_BYTES = 16
"""Least bytes per parameter for training with AdamW: bf16 weights and gradient (4), fp32 master weights (4), two fp32
moments (8).

veRL's FSDP keeps fp32 weights and gradient without other master weights, also 16; Megatron's fp32 gradient makes it 18.
Activations, a reference model and the sampler's memory add to this."""
ON_GPU_BYTES = 2 * ELEMENT
"""Bytes per parameter that stay on the GPUs if the optimizer's state is offloaded: weights and gradient."""
ADAM_BYTES = 30
"""Bytes per parameter that an update of AdamW with fp32 master weights moves.

It reads master weights, two moments and the gradient (16), and writes the first three and the bf16 copy (14)."""


@dataclass(frozen=True)
class Efficiency:
    """Share of the roofline that each phase reaches.

    The defaults are rules of thumb, not measurements. Pretraining at scale reports 38–43% of the peak (Llama 3, arXiv
    2407.21783, table 4), and updates on responses of different lengths reach less. A serving engine with many requests
    reaches about half of the bandwidth. Small models and batches reach a tenth of these values, so calibrate.
    """

    prefill: float = 0.5
    decode: float = 0.5
    training: float = 0.35
    source: Literal["measured", "given", "modelled"] = "modelled"
    interval: tuple[float, float] | None = None
    """95% interval of the whole step's time, as factors around 1 (lower is faster); None if not measured."""

    def __post_init__(self) -> None:
        for name in ("prefill", "decode", "training"):
            if not getattr(self, name) > 0:
                raise InputError(f"efficiency.{name} = {getattr(self, name):g}; give a share of the peak above 0.")


@dataclass(frozen=True)
class Phase:
    """One phase of a step on all GPUs: its work and its time."""

    flops: float
    bytes: float
    compute_seconds: float
    memory_seconds: float
    seconds: float

    @property
    def limited_by(self) -> Literal["compute", "bandwidth"]:
        """The side of the roofline that limits it."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "bandwidth"


@dataclass(frozen=True)
class StepCost:
    """The cost of one step of an allocation."""

    allocation: Allocation
    gpu: Gpu
    gpus: int
    prompt_tokens: float
    response_tokens: float
    efficiency: Efficiency
    prefill: Phase
    decode: Phase
    training: Phase
    gpus_per_copy: int
    """GPUs that hold one copy of the model while generating."""
    concurrent: float
    """Responses that one copy decodes at once."""
    waiting: bool
    """Whether responses wait because the cache of all does not fit into memory."""
    bound: str
    """What limits the longest phase: `kv_memory`, or a phase and `compute` or `bandwidth`."""

    @property
    def seconds(self) -> float:
        """Seconds of one step."""
        return self.prefill.seconds + self.decode.seconds + self.training.seconds

    @property
    def rollouts_per_second(self) -> float:
        """Rollouts per second on all GPUs together, training included."""
        return self.allocation.batch_size / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second on all GPUs together, training included."""
        return self.rollouts_per_second * self.response_tokens

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the whole run."""
        return self.seconds * self.allocation.update_steps * self.gpus / 3600.0


def attended_pairs(shape: ModelShape, *, start: float, tokens: float) -> float:
    """Query–key pairs of `tokens` causal tokens after the first `start`, averaged over full and windowed layers.

    >>> from isocompute.planner.cost.model import model_shape
    >>> tiny = model_shape({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    ...     "num_attention_heads": 1, "vocab_size": 8})
    >>> attended_pairs(tiny, start=2, tokens=3)  # 3 + 4 + 5
    12.0
    """
    full = tokens * (start + (tokens + 1) / 2)
    if not shape.windowed_layers or shape.window is None:
        return full
    growing = min(max(shape.window - start, 0.0), tokens)  # tokens that still see everything before them
    local = growing * (start + (growing + 1) / 2) + (tokens - growing) * shape.window
    return full + shape.windowed_share * (local - full)


def forward_flops(shape: ModelShape, *, tokens: float, pairs: float, logits: float) -> float:
    """FLOPs of a forward pass: layers on `tokens`, attention on `pairs`, the output head on `logits` positions."""
    return 2.0 * shape.token_weights * tokens + shape.pair_flops * pairs + 2.0 * shape.head_weights * logits


def step_cost(
    *,
    shape: ModelShape,
    gpu: Gpu,
    gpus: int,
    allocation: Allocation,
    prompt_tokens: float,
    response_tokens: float,
    efficiency: Efficiency | None = None,
    scoring_passes: int = 1,
    updates_per_batch: int = 1,
) -> StepCost:
    """Seconds and bottleneck of one step. Token counts are means.

    `scoring_passes` are forward passes over the batch before the update: 1 for the old log-probs, 2 with a reference
    model, 0 where the sampler's log-probs are used.
    """
    efficiency = efficiency or Efficiency()
    prompt, response = prompt_tokens, response_tokens
    if gpus < 1:
        raise InputError(f"gpus = {gpus}; give at least 1.")
    if not (0 <= prompt < math.inf and 0 < response < math.inf):
        raise InputError(f"{prompt:g} prompt and {response:g} response tokens; give at least 0 and 1.")
    problems, batch = allocation.problems_per_batch, allocation.batch_size
    cache = float(ELEMENT * shape.cache_elements)  # bytes of a token

    def phase(count: int, flops: float, moved: float, share: float) -> Phase:
        compute, memory = flops / (gpu.peak * count), moved / (gpu.bandwidth * count)
        return Phase(flops, moved, compute, memory, max(compute, memory) / share)

    # Decode: the fastest spread of a copy over GPUs. A copy decodes `concurrent` responses at once.
    cached = response + prompt / allocation.rollouts_per_problem
    if shape.window is not None:
        cached -= shape.windowed_share * max(cached - shape.window, 0.0)
    pairs = batch * attended_pairs(shape, start=prompt, tokens=response)
    flops = batch * response * 2.0 * (shape.token_weights + shape.head_weights) + shape.decode_pair_flops * pairs
    spreads = []
    for copy in _copy_sizes(shape, gpu, gpus, cached * cache):
        copies = min(gpus // copy, batch)  # a copy without a response does nothing
        mine, room = batch / copies, (USABLE * gpu.memory * copy - ELEMENT * shape.parameters) / (cached * cache)
        concurrent = max(1.0, min(mine, room))
        moved = copies * response * mine / concurrent * ELEMENT * _weights_read(shape, concurrent)
        moved += cache * (pairs + batch * response)  # read for every token, written once
        timed = phase(copy * copies, flops, moved, efficiency.decode * SPREAD ** math.log2(copy))
        spreads.append((timed, copy, copies, concurrent, concurrent < mine))
    decode, copy, copies, concurrent, waiting = min(spreads, key=lambda spread: spread[0].seconds)

    # Prefill: each prompt once, on every copy.
    flops = problems * forward_flops(
        shape, tokens=prompt, pairs=attended_pairs(shape, start=0, tokens=prompt), logits=1.0
    )
    moved = ELEMENT * (shape.parameters * copies + problems * prompt * shape.cache_elements)
    prefill = phase(copy * copies, flops, moved, efficiency.prefill) if prompt else phase(1, 0.0, 0.0, 1.0)

    # Training: every GPU reads the whole weights in every pass; the optimizer's state is split between them.
    length, work = prompt + response, scoring_passes + TRAINING_PASSES * updates_per_batch
    flops = batch * forward_flops(
        shape, tokens=length, pairs=attended_pairs(shape, start=0, tokens=length), logits=response
    )
    moved = shape.parameters * (ELEMENT * work * gpus + ADAM_BYTES * updates_per_batch)
    training = phase(gpus, flops * work, moved, efficiency.training)

    phases = {"decode": decode, "prefill": prefill, "training": training}
    longest = max(phases, key=lambda name: phases[name].seconds)
    bound = f"{longest}_{phases[longest].limited_by}"
    return StepCost(
        allocation=allocation,
        gpu=gpu,
        gpus=gpus,
        prompt_tokens=prompt,
        response_tokens=response,
        efficiency=efficiency,
        prefill=prefill,
        decode=decode,
        training=training,
        gpus_per_copy=copy,
        concurrent=concurrent,
        waiting=waiting,
        bound="kv_memory" if waiting and bound == "decode_bandwidth" else bound,
    )


def _copy_sizes(shape: ModelShape, gpu: Gpu, count: int, per_response: float) -> list[int]:
    """The powers of two of GPUs that hold the weights and one response, on one machine if it holds them."""
    needed = ELEMENT * shape.parameters + per_response
    copy = 1
    while copy * USABLE * gpu.memory < needed:
        copy *= 2
    if copy > count:
        fitting = sorted((g for g in gpus().values() if count * USABLE * g.memory >= needed), key=lambda g: g.memory)
        other = f", or {count} × {fitting[0].name}" if fitting else ""
        raise InputError(
            f"{count} × {gpu.name}: {shape.parameters / 1e9:.1f}B parameters do not fit for generation; "
            f"use at least {copy}{other}."
        )
    most = min(count, max(copy, MACHINE))
    return [copy * 2**i for i in range((most // copy).bit_length())]


def _weights_read(shape: ModelShape, batch: float) -> float:
    """Weights that a decoding step reads: all but the input embeddings and the experts that get no token."""
    table = 0 if shape.tied else shape.head_weights
    if not shape.experts:
        return float(shape.parameters - table)
    met = float(shape.experts * (1.0 - (1.0 - shape.experts_per_token / shape.experts) ** batch))
    return shape.parameters - table - (shape.experts - met) * shape.expert_weights


def check_training_memory(shape: ModelShape, gpu: Gpu, count: int) -> list[PlanWarning]:
    """Raise if training does not fit even with the optimizer's state offloaded; warn if it needs offloading."""
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
        PlanWarning(
            "training_memory", f"{what}: offload AdamW's state, which is slower than priced here, or use {enough}"
        )
    ]


def _enough(needed: float, gpu: Gpu) -> int:
    """The fewest GPUs that hold this many bytes, as a power of two."""
    count = 1
    while count * USABLE * gpu.memory < needed:
        count *= 2
    return count
