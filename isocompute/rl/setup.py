"""Prepares a cell for training: engine options, recipe, model, problems, and batch sizes that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import Recipe, make_recipe
from isocompute.rl.model.checkpoint import TINY, Model, load_model, model_folder, recipe_defaults
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import FP32_ATTENTION_SLOTS
from isocompute.rl.tasks import ProblemsSpec, Tasks, make_tasks

_RETIRED = {
    "overlap": "updates no longer run beside decoding",
    "generation_device": "a pipeline samples on the device it trains on",
}
_IGNORED = ("fast", "together")
"""Options of stored studies that never changed a result."""
_CPU_BYTES = 2 * 2**30
_GPU_SHARE = 0.4
_MOST_ROWS = 8192
_ONE_THREAD = 4_000_000
"""Parameters below which a model's operations on a CPU are faster on one thread."""


class EngineSpec(BaseModel):
    """The `[engine_options]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=TINY, description="checkpoint folder, name on the hub, or tiny: the built-in one")
    device: str = Field(default="auto", description="cpu, cuda, cuda:1; auto takes a GPU where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="what the model computes in; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    micro_batch: int | None = Field(default=None, ge=1, description="rollouts in one forward and backward pass")
    sample_batch: int | None = Field(default=None, ge=1, description="rollouts sampled at a time")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; 1 for small models, else torch's choice")
    slots: int | None = Field(default=None, ge=1, description="pipeline: sequences in flight; a batch if not set")
    save_model: bool = Field(default=False, description="write the trained weights as a checkpoint into the run")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> EngineSpec:
        """From a table; errors name the field."""
        for name in table:
            if name in _RETIRED:
                raise InputError(f"engine.{name}: {_RETIRED[name]}; leave it out.")
        try:
            spec = cls(**{name: value for name, value in table.items() if name not in _IGNORED})
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"engine.{where}: {why}.") from error
        if spec.device != "auto" and not re.fullmatch(r"cpu|cuda(:\d+)?", spec.device):
            raise InputError(f"engine.device: '{spec.device}' is not cpu, cuda, cuda:1 or auto.")
        if spec.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"engine.device: '{spec.device}', but torch sees no GPU on this machine; use cpu.")
        if ":" in spec.device and int(spec.device.partition(":")[2]) >= torch.cuda.device_count():
            raise InputError(f"engine.device: '{spec.device}', but torch sees {torch.cuda.device_count()} GPU(s).")
        return spec

    @property
    def where(self) -> str:
        """The name of the device, with auto resolved."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type of the weights, with auto resolved."""
        if self.dtype == "auto":
            return torch.bfloat16 if self.where.startswith("cuda") else torch.float32
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32


def lm_recipe(cell: Cell) -> Recipe:
    """The cell's recipe; the model's folder gives defaults, such as a learning rate."""
    return make_recipe(cell.recipe, defaults=recipe_defaults(model_folder(EngineSpec.of(cell.engine).model)))


def memory_budget(device: torch.device) -> int:
    """Bytes that activations or a cache may take: a share of the free memory of a GPU, or 2 GiB on a CPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(_GPU_SHARE * free)
    return _CPU_BYTES


def training_rows(config: DecoderConfig, *, tokens: int, dtype: torch.dtype, budget: int) -> int:
    """The number of sequences of `tokens` tokens whose activations fit.

    Per token, a layer keeps about 16 widths (norms, q, k, v, attention, residuals, some in FP32) and 4 feed-forward
    widths. The head keeps 4 vocabularies in FP32 (logits, their gradient, log-softmax, entropy). Short FP32 attention
    (`FP32_ATTENTION_SLOTS`) may also keep its weights, one for each head and slot.
    """
    layer = (16 * config.hidden_size + 4 * config.intermediate_size) * dtype.itemsize
    if dtype != torch.float32 and tokens <= FP32_ATTENTION_SLOTS:
        layer += config.num_attention_heads * tokens * 4
    per_token = config.num_hidden_layers * layer + 4 * config.vocab_size * 4
    return max(1, min(_MOST_ROWS, budget // (per_token * tokens)))


def sampling_rows(config: DecoderConfig, *, tokens: int, dtype: torch.dtype, budget: int) -> int:
    """The number of sequences that fit: two caches (removing finished rows copies one) and the logits of a step."""
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize * tokens
    return max(1, min(2 * _MOST_ROWS, budget // (2 * cache + 6 * config.vocab_size * 8)))


@dataclass(frozen=True)
class Sizes:
    """The number of sequences that the model processes at once."""

    micro_batch: int
    sample_batch: int
    slots: int | None = None
    """Sequences in flight of a pipeline; None stands for one batch."""


@dataclass(frozen=True)
class CellSetup:
    """A cell with everything its training needs."""

    cell: Cell
    engine: EngineSpec
    recipe: Recipe
    problems: ProblemsSpec
    model: Model
    tasks: Tasks
    sizes: Sizes


def set_up(cell: Cell) -> CellSetup:
    """Load the model and problems of a cell; cells of a study share them."""
    engine, recipe, problems = EngineSpec.of(cell.engine), lm_recipe(cell), ProblemsSpec.of(cell.problems)
    model = _model(engine.model, engine.torch_dtype, engine.where, _stamps(model_folder(engine.model)))
    small = sum(p.numel() for p in model.decoder.parameters()) < _ONE_THREAD
    if engine.threads is not None or (small and model.device.type == "cpu"):
        torch.set_num_threads(engine.threads or 1)  # threads of a small model would mostly wait for each other
    tasks = tasks_of(problems, model.folder, engine, recipe)
    sizes = choose_sizes(engine, model, tasks, recipe.baseline_rollouts or cell.rollouts_per_problem)
    return CellSetup(cell, engine, recipe, problems, model, tasks, sizes)


_Stamps = tuple[tuple[str, int, int], ...]


def _stamps(*paths: str | Path) -> _Stamps:
    """Names, times and sizes of these files and of those in these folders; part of the key of the caches below."""
    out = []
    for path in map(Path, paths):
        with suppress(OSError):  # not the name of a file, or too long for one
            for file in path.iterdir() if path.is_dir() else [path]:
                with suppress(OSError):  # a broken link, or removed since
                    found = file.stat()
                    out.append((str(file), found.st_mtime_ns, found.st_size))
    return tuple(sorted(out))


@lru_cache(maxsize=1)
def _model(name: str, dtype: torch.dtype, device: str, _: _Stamps) -> Model:
    """The base model, which a worker loads once for all cells of a study."""
    return load_model(name, dtype=dtype, device=device)


@lru_cache(maxsize=8)
def _tasks(spec_json: str, folder: Path, device: str, controlled: bool, _: _Stamps) -> Tasks:
    spec = ProblemsSpec.model_validate_json(spec_json)
    return make_tasks(spec, folder, torch.device(device), controlled=controlled)


def tasks_of(problems: ProblemsSpec, folder: Path, engine: EngineSpec, recipe: Recipe) -> Tasks:
    """The tokenized problems of a cell, prepared once for all cells of a study."""
    stamps = _stamps(folder, *problems.all_sources)
    return _tasks(problems.model_dump_json(), folder, engine.where, recipe.length_control != "truncate", stamps)


def choose_sizes(engine: EngineSpec, model: Model, tasks: Tasks, rollouts_per_problem: int) -> Sizes:
    """Batch sizes that fit into memory, unless given; the rollouts of a problem are sampled together."""
    measured = (tasks.train, tasks.validation, *tasks.out_of_distribution.values())
    longest = max(len(prompt) for task in measured for prompt in task.prompts)
    tokens, config, dtype = longest + tasks.max_new_tokens, model.decoder.config, engine.torch_dtype
    budget = memory_budget(model.device)
    train = engine.micro_batch or training_rows(config, tokens=tokens, dtype=dtype, budget=budget)
    sampled = engine.sample_batch or sampling_rows(config, tokens=tokens, dtype=dtype, budget=budget)
    return Sizes(micro_batch=train, sample_batch=max(sampled, rollouts_per_problem), slots=engine.slots)
