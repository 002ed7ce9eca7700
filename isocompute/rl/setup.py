"""Prepares a cell for training: engine options, recipe, model, problems, and batch sizes that fit into memory."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.allocation import Cell, Evaluation
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import Recipe, make_recipe
from isocompute.rl.lengths import make_interruption
from isocompute.rl.model.checkpoint import TINY, Model, load_model, model_folder, recipe_defaults
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout import kernels
from isocompute.rl.rollout.captured import CapturedEngine
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import RolloutEngine, SamplingSettings
from isocompute.rl.tasks import ProblemsSpec, Tasks, make_tasks

_RETIRED = {
    "overlap": "updates no longer run beside decoding",
    "generation_device": "a pipeline samples on the device it trains on",
}
_IGNORED = ("fast", "together")
"""Options of stored studies that never changed a result."""
_CPU_BYTES = 4 * 2**30
"""What activations and caches may take together on a CPU."""
_MARGIN = 0.9
_HEAD_BYTES = 5 * 2**29
"""Logits of a chunk, their gradient and what lies between."""
_MOST_TOKENS = 2**16
"""Tokens of a training pass above which a GPU gains nothing."""
_MOST_TOKENS_CPU = 2**12
_FEWEST_TOKENS = 256
MOST_ROWS = 4096
"""Rows decoded at a time above which a GPU gains little."""
_ONE_THREAD = 4_000_000
"""Parameters below which a model's operations on a CPU are faster on one thread."""


class EvaluationSpec(Evaluation):
    """The `[evaluation]` table of this engine."""

    temperature: float | None = Field(default=None, ge=0, description="of evaluation; the recipe's if not set")
    keep_samples: int = Field(default=8, ge=0, description="responses kept in samples.jsonl at each evaluation")


class EngineSpec(BaseModel):
    """The `[engine_options]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=TINY, description="checkpoint folder, name on the hub, or tiny: the built-in one")
    device: str = Field(default="auto", description="cpu, cuda, cuda:1; auto takes a GPU where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="what the model computes in; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    rollout: Literal["auto", "eager", "captured"] = Field(
        default="auto", description="how responses are generated; auto: captured on a GPU, eager on a CPU"
    )
    micro_batch: int | None = Field(default=None, ge=1, description="most rollouts in one forward and backward pass")
    sample_batch: int | None = Field(default=None, ge=1, description="most rollouts in flight")
    recompute: bool | None = Field(
        default=None,
        description="compute activations again in the backward pass; only where memory is short if not set",
    )
    memory_gib: float | None = Field(default=None, gt=0, description="GPU memory that the run may use; all if not set")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; 1 for small models, else torch's choice")
    slots: int | None = Field(default=None, ge=1, description="pipeline: rollouts in flight; a batch if not set")
    save_model: bool = Field(default=False, description="write the trained weights as a checkpoint into the run")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> EngineSpec:
        """From a table; errors name the field."""
        for name in table:
            if name in _RETIRED:
                raise InputError(f"engine_options.{name}: {_RETIRED[name]}; leave it out.")
        try:
            spec = cls(**{name: value for name, value in table.items() if name not in _IGNORED})
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"engine_options.{where}: {why}.") from error
        if spec.device != "auto" and not re.fullmatch(r"cpu|cuda(:\d+)?", spec.device):
            raise InputError(f"engine_options.device: '{spec.device}' is not cpu, cuda, cuda:1 or auto.")
        if spec.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"engine_options.device: '{spec.device}', but torch sees no GPU on this machine; use cpu.")
        if ":" in spec.device and int(spec.device.partition(":")[2]) >= torch.cuda.device_count():
            raise InputError(
                f"engine_options.device: '{spec.device}', but torch sees {torch.cuda.device_count()} GPU(s)."
            )
        return spec

    @property
    def where(self) -> str:
        """The name of the device, with auto resolved."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def sampler(self) -> tuple[str, str]:
        """Which rollout engine a run uses, and why."""
        if self.rollout != "auto":
            return self.rollout, "as engine_options.rollout asks"
        if not self.where.startswith("cuda"):
            return "eager", "without a GPU"
        return ("captured", "on a GPU") if kernels.AVAILABLE else ("eager", "Triton is not installed")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type of the weights, with auto resolved."""
        if self.dtype == "auto":
            return torch.bfloat16 if self.where.startswith("cuda") else torch.float32
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32


def lm_recipe(cell: Cell) -> Recipe:
    """The cell's recipe; the model's folder gives defaults, such as a learning rate."""
    return make_recipe(cell.recipe, defaults=recipe_defaults(model_folder(EngineSpec.of(cell.engine).model)))


# What fits into the memory of a device


def parameters(config: DecoderConfig) -> int:
    """The number of weights of a decoder."""
    width, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    tables = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    return config.num_hidden_layers * (width * heads * size + 3 * width * inner) + tables


def adapter_parameters(config: DecoderConfig, rank: int) -> int:
    """The number of weights of adapters of this rank on every linear map of the layers."""
    width, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * size, config.num_key_value_heads * size
    maps = [(width, q), (width, kv), (width, kv), (q, width), (width, inner), (width, inner), (inner, width)]
    return config.num_hidden_layers * rank * sum(a + b for a, b in maps)


def weight_bytes(config: DecoderConfig, dtype: torch.dtype, *, lora_rank: int | None) -> int:
    """What training holds beside the base: the sampler's weights; then policy, FP32 masters, gradients, two moments.

    With adapters, the policy shares the base's weights, and the gradient of one map at a time exists in full.
    """
    count, size = parameters(config), dtype.itemsize
    if lora_rank is not None:
        return count * size + adapter_parameters(config, lora_rank) * 16 + config.vocab_size * config.hidden_size * size
    mixed = 4 + 4 + size if dtype != torch.float32 else 4  # masters and their gradients, and gradients of a pass
    return count * (2 * size + mixed + 8)


def token_bytes(config: DecoderConfig, dtype: torch.dtype, *, recompute: bool) -> int:
    """Activations that a training pass keeps for each token.

    Of a layer: two residual streams in FP32, and what its products read. A decoder that is not compiled keeps about
    twice as much. With recomputation, every layer keeps its input, and one layer at a time the rest.
    """
    width, size = config.hidden_size, config.head_dim
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    layer = 8 * width + dtype.itemsize * (2 * width + heads * size + 3 * config.intermediate_size)
    if dtype == torch.float32:
        layer *= 2
    return config.num_hidden_layers * 4 * width + layer if recompute else config.num_hidden_layers * layer


def row_bytes(config: DecoderConfig, dtype: torch.dtype, *, prompt_tokens: int, new_tokens: int) -> int:
    """Keys and values of a row, and its share of its prompt's (the captured engine has a prompt for four rows)."""
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize
    return token * (new_tokens + prompt_tokens // 4 + 1)


@dataclass
class Sizes:
    """What the model processes at once; results do not depend on it."""

    tokens: int
    """Tokens of a training pass."""
    rows: int
    """Rows in flight in the rollout engine."""
    recompute: bool = False
    most_rows: int | None = None
    """Rollouts of a training pass, where the user sets a limit."""

    def halve(self) -> bool:
        """Halve the training pass after it ran out of memory; False if it cannot be smaller."""
        if self.tokens <= _FEWEST_TOKENS:
            return False
        self.tokens //= 2
        return True


def free_bytes(device: torch.device, *, limit_gib: float | None = None) -> int:
    """Memory that is free now, with a limit on what the run uses in all; on a CPU, what this engine allows itself."""
    if device.type != "cuda":
        return _CPU_BYTES
    gc.collect()  # an earlier run may still wait for it, with its caches and graphs
    torch.cuda.empty_cache()
    free = float(torch.cuda.mem_get_info(device)[0])
    if limit_gib is not None:
        free = min(free, limit_gib * 2**30 - torch.cuda.memory_allocated(device))
    return int(_MARGIN * free)


@dataclass(frozen=True)
class Request:
    """A training that has to fit beside the base model, which is loaded already."""

    config: DecoderConfig
    dtype: torch.dtype
    gpu: bool
    free: int
    prompt_tokens: int
    new_tokens: int
    rows: int
    """Rows in flight that the run could use."""
    lora_rank: int | None = None
    recompute: bool = False

    def weights(self) -> int:
        """Bytes of everything that does not depend on the batch."""
        return weight_bytes(self.config, self.dtype, lora_rank=self.lora_rank) if self.gpu else 0

    def sizes(self) -> Sizes | None:
        """Half of what the weights leave goes to rollouts at most; None if one sequence does not fit."""
        row = row_bytes(self.config, self.dtype, prompt_tokens=self.prompt_tokens, new_tokens=self.new_tokens)
        left = self.free - self.weights() - (_HEAD_BYTES if self.gpu else 0)
        rows = min(self.rows, MOST_ROWS, int(left / 2 / row))
        most = _MOST_TOKENS if self.gpu else _MOST_TOKENS_CPU
        each = token_bytes(self.config, self.dtype, recompute=self.recompute)
        tokens = min(most, int((left - rows * row) / each))
        enough = rows >= 1 and tokens >= self.prompt_tokens + self.new_tokens
        return Sizes(tokens, rows, self.recompute) if enough else None


def fit(request: Request, *, recompute: bool | None) -> Sizes:
    """Sizes that fit; with `recompute` None, activations are recomputed where little would fit otherwise."""
    plain, saving = request.sizes(), replace(request, recompute=True).sizes()
    if recompute is not None:
        plain = saving = replace(request, recompute=recompute).sizes()
    if plain is not None and plain.tokens >= min(_MOST_TOKENS // 4, 4 * (request.prompt_tokens + request.new_tokens)):
        return plain
    if found := saving or plain:
        return found
    if not request.gpu:
        return Sizes(max(_FEWEST_TOKENS, request.prompt_tokens + request.new_tokens), 1, bool(recompute))
    raise InputError(_too_small(request))


def _too_small(request: Request) -> str:
    """Why a training does not fit, and what would: LoRA, recomputation, a smaller budget, in that order."""
    gigabytes, asked, changed = 2**30, request, []
    if not asked.lora_rank:
        asked = replace(asked, lora_rank=32)
        changed.append("recipe.lora_rank = 32")
    if asked.sizes() is None and not asked.recompute:
        asked = replace(asked, recompute=True)
        changed.append("engine_options.recompute = true")
    while asked.sizes() is None and asked.new_tokens > 64:
        asked = replace(asked, new_tokens=asked.new_tokens // 2)
    if asked.new_tokens < request.new_tokens:
        changed.append(f"problems.max_new_tokens = {asked.new_tokens}")
    advice = (
        f"{' and '.join(changed)} would fit" if asked.sizes() is not None else "take a smaller model or a larger GPU"
    )
    lora = "" if request.lora_rank else f" ({replace(request, lora_rank=32).weights() / gigabytes:.1f} with LoRA)"
    return (
        f"engine_options.model: training takes {request.weights() / gigabytes:.1f} GiB for weights, gradients and "
        f"optimizer beside the base model{lora}, and room for at least one sequence of "
        f"{request.prompt_tokens + request.new_tokens} tokens; {request.free / gigabytes:.1f} GiB are free: {advice}."
    )


# A cell with everything that its training needs


@dataclass(frozen=True)
class CellSetup:
    """A cell with everything its training needs."""

    cell: Cell
    engine: EngineSpec
    recipe: Recipe
    problems: ProblemsSpec
    evaluation: EvaluationSpec
    model: Model
    tasks: Tasks
    sizes: Sizes


def set_up(cell: Cell) -> CellSetup:
    """Load the model and problems of a cell; cells of a study share them."""
    engine, recipe, problems = EngineSpec.of(cell.engine), lm_recipe(cell), ProblemsSpec.of(cell.problems)
    evaluation = EvaluationSpec.of(cell.evaluation)
    model = _model(engine.model, engine.torch_dtype, engine.where, _stamps(model_folder(engine.model)))
    model.decoder.compiled = model.device.type == "cuda"
    small = sum(p.numel() for p in model.decoder.parameters()) < _ONE_THREAD
    if engine.threads is not None or (small and model.device.type == "cpu"):
        torch.set_num_threads(engine.threads or 1)  # threads of a small model would mostly wait for each other
    tasks = tasks_of(problems, model.folder, recipe)
    sizes = choose_sizes(cell, engine, recipe, model, tasks, evaluation)
    return CellSetup(cell, engine, recipe, problems, evaluation, model, tasks, sizes)


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
def _tasks(spec_json: str, folder: Path, controlled: bool, _: _Stamps) -> Tasks:
    return make_tasks(ProblemsSpec.model_validate_json(spec_json), folder, controlled=controlled)


def tasks_of(problems: ProblemsSpec, folder: Path, recipe: Recipe) -> Tasks:
    """The tokenized problems of a cell, prepared once for all cells of a study."""
    stamps = _stamps(folder, *problems.all_sources)
    return _tasks(problems.model_dump_json(), folder, recipe.length_control != "truncate", stamps)


def choose_sizes(
    cell: Cell, engine: EngineSpec, recipe: Recipe, model: Model, tasks: Tasks, evaluation: EvaluationSpec
) -> Sizes:
    """Sizes that fit into memory; a run has no more rollouts in flight than its batches and evaluations have."""
    most = max(len(task) for task in tasks.measured.values()) * evaluation.samples
    rows = max(cell.rollouts_per_update * recipe.off_policy_steps, most, engine.slots or 0)
    request = Request(
        model.decoder.config,
        engine.torch_dtype,
        gpu=model.device.type == "cuda",
        free=free_bytes(model.device, limit_gib=engine.memory_gib),
        prompt_tokens=longest_prompt(tasks),
        new_tokens=tasks.max_new_tokens,
        rows=min(rows, engine.sample_batch or rows),
        lora_rank=recipe.lora_rank,
    )
    return replace(fit(request, recompute=engine.recompute), most_rows=engine.micro_batch)


def longest_prompt(tasks: Tasks) -> int:
    """Tokens of the longest prompt of all problems."""
    measured = (tasks.train, tasks.validation, *tasks.out_of_distribution.values())
    return max(len(prompt) for task in measured for prompt in task.prompts)


def sampling_settings(setup: CellSetup) -> SamplingSettings:
    """What all rollouts of a run share."""
    recipe, tasks, model = setup.recipe, setup.tasks, setup.model
    interruption = None
    if recipe.length_control == "interrupt":
        budget = tasks.max_new_tokens
        interruption = make_interruption(recipe, tasks.phrase, budget, model.folder, model.stop_tokens)
    return SamplingSettings(
        max_new_tokens=tasks.max_new_tokens,
        top_p=recipe.top_p,
        stop_tokens=model.stop_tokens,
        stop_strings=tuple(tasks.stop_strings),
        text=tasks.train.text,
        fp32_head=recipe.fp32_head,
        interruption=interruption,
        keep_versions=recipe.pipeline_steps > 0,
    )


def make_engine(
    engine: EngineSpec, decoder: Decoder, settings: SamplingSettings, *, rows: int, prompt_tokens: int
) -> RolloutEngine:
    """The rollout engine of a run; with half as many rows where memory runs out."""
    if engine.sampler[0] == "eager":
        return EagerEngine(decoder, settings, rows=rows, prompt_tokens=prompt_tokens)
    while True:
        try:
            made = CapturedEngine(decoder, settings, rows=rows, prompt_tokens=prompt_tokens)
            made.capture()
            return made
        except torch.OutOfMemoryError:
            if rows <= 1:
                raise
            rows = rows // 2
        torch.cuda.empty_cache()
