"""Decoding by the one kernel: its buffers, and its launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from isocompute.rl.decoder import Decoder
from isocompute.rl.fast.prompts import Read
from isocompute.rl.fast.sampled import Sampled
from isocompute.rl.fast.weights import LayerWeights
from isocompute.rl.fast.whole.packing import word_addresses
from isocompute.rl.fast.whole.shape import Shape
from isocompute.rl.rope import rope_turns

__all__ = ["CompilerError", "Launch", "WholeGeneration", "blocks_on", "compiled", "sources_of"]

_HERE = Path(__file__).parent
_GENERATE = "generate"
_BLOCKS, _THREADS = 528, 256
"""Of the kernels that only move data."""
_HOPPER = 9


class CompilerError(Exception):
    """The run-time compiler could not be had, or did not do it."""


class Launch(Protocol):
    """A compiled kernel."""

    def __call__(
        self, *, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any], shared_mem: int
    ) -> None:
        """Begin it on the current stream."""


def blocks_on(weight: Tensor) -> int:
    """How many blocks of the kernel run at the same time where these weights are; 0 where it cannot run: it needs bf16,
    a Hopper GPU, the current one, and a PyTorch with a run-time compiler.
    """
    if weight.dtype != torch.bfloat16 or not weight.is_cuda or not hasattr(torch.cuda, "_compile_kernel"):
        return 0
    if weight.device.index != torch.cuda.current_device():
        return 0
    machine = torch.cuda.get_device_properties(weight.device)
    return int(machine.multi_processor_count) if machine.major == _HOPPER and torch.version.hip is None else 0


def sources_of(name: str) -> list[Path]:
    """The files that a kernel is made of, in their order, behind `hopper.h`."""
    generate = ("layout.h", "feeding.h", "attention.h", "worker.h", "kernel.cu")
    return [_HERE / file for file in (generate if name == _GENERATE else ("packing.cu",))]


def compiled(shape: Shape, name: str) -> Launch:
    """A kernel for this shape, by PyTorch's run-time compiler; those that only move data know of none."""
    whole = name == _GENERATE
    options = tuple(f"-D{key}={value}" for key, value in shape.constants().items()) if whole else ()
    try:
        return _compiled(name, options, shape.shared_bytes if whole else 0, torch.cuda.current_device())
    except (RuntimeError, OSError, AttributeError, TypeError) as error:
        # Of the compiler; of a library that is not there; of a PyTorch that calls its own function otherwise.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = next((line for line in lines if "error" in line.lower()), lines[0] if lines else type(error).__name__)
        raise CompilerError(why.rstrip(".")) from error


@cache
def _compiled(name: str, options: tuple[str, ...], shared_bytes: int, _device: int) -> Launch:
    """What was compiled on one GPU cannot be launched on another."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (_HERE / "hopper.h", *sources_of(name)))
    with _some_cuda_home():
        kernel = torch.cuda._compile_kernel(source, name, compute_capability="90a", nvcc_options=list(options))
    if shared_bytes:
        kernel.set_shared_memory_config(shared_bytes)
    out: Launch = kernel
    return out


@contextmanager
def _some_cuda_home() -> Iterator[None]:
    """PyTorch's function asks where CUDA's headers are, and fails on machines that have the compiler's library alone,
    as it comes with PyTorch. No header is included here: any place will do.
    """
    from torch.utils import cpp_extension

    found = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = found or str(_HERE)
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = found


class WholeGeneration:
    """Responses to the prompts of a reader."""

    def __init__(
        self,
        decoder: Decoder,
        weights: Sequence[LayerWeights],
        read: Read,
        sampled: Sampled,
        shape: Shape,
        *,
        first_row: Tensor,
        seed: Tensor,
        stop_tokens: tuple[int, ...],
        temperature: float,
        compile_kernel: Callable[[Shape, str], Launch] = compiled,
    ) -> None:
        self.shape, self.read, self.sampled, self.temperature = shape, read, sampled, temperature
        self.first_row, self.seed, self.embedding = first_row, seed, decoder.embed_tokens.weight
        (rows, self.new_slots), device = sampled.tokens_BT.shape, self.embedding.device
        layers, self.problems, self.groups, self.prompt_slots, self.size = read.keys_LPGSK.shape
        self.cells, self.cell_rows, self.per_prompt = decoder.cells, rows // decoder.cells, rows // self.problems
        sources = word_addresses(decoder, weights, shape)
        self._sources = torch.cat([torch.from_numpy(of) for of in sources.values()]).to(device)
        self._words = torch.zeros(len(self._sources), dtype=torch.int32, device=device)
        self._arrays = torch.split(self._words, [len(of) for of in sources.values()])
        bytes_of_token, self.layers = shape.ranks * layers * shape.slot_bytes, layers
        self._prompts = torch.zeros(
            bytes_of_token * self.problems * self.prompt_slots, dtype=torch.uint8, device=device
        )
        self._cache = torch.zeros(bytes_of_token * rows * self.new_slots, dtype=torch.uint8, device=device)
        self._stops = torch.tensor(stop_tokens or (-1,), dtype=torch.int32, device=device)
        self.cos, self.sin = rope_turns(decoder.rope_speeds, decoder.rope_scale, self.prompt_slots + self.new_slots)
        names = ("gather_words", "pack_prompts", _GENERATE)
        self._kernels = {name: compile_kernel(shape, name) for name in names}

    @torch.no_grad()
    def decode(self) -> None:
        """Sample responses to the prompts that have been read."""
        shape, read = self.shape, self.read
        self._move("gather_words", self._sources, self._words, len(self._words))
        self._move(
            "pack_prompts",
            *(read.keys_LPGSK, read.values_LPGSK, read.padding_P, self._prompts),
            *(shape.ranks, self.layers, self.problems, self.groups, self.prompt_slots, self.size),
        )
        units = self.cells * -(-self.cell_rows // shape.unit)
        arrays = (*self._arrays, self.embedding, self.cos, self.sin, self._prompts, read.padding_P, read.last_PD)
        others = (self._cache, self._stops, self.seed, self.first_row, *self.sampled)
        sizes = (len(self._stops), self.problems, self.per_prompt, self.prompt_slots, self.new_slots, self.cell_rows)
        self._kernels[_GENERATE](
            grid=(units * shape.ranks, 1, 1),
            block=(shape.threads, 1, 1),
            args=[*arrays, *others, *sizes, shape.unit, float(self.temperature)],
            shared_mem=shape.shared_bytes,
        )

    def _move(self, name: str, *args: Any) -> None:
        self._kernels[name](grid=(_BLOCKS, 1, 1), block=(_THREADS, 1, 1), args=list(args), shared_mem=0)
