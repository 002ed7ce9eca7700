"""How much of a model, its training and its rollouts fits into the memory of a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from isocompute.core.errors import InputError
from isocompute.rl.model.config import DecoderConfig

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
    gigabytes = 2**30
    lora = replace(request, lora_rank=request.lora_rank or 32)
    tries = [
        ("recipe.lora_rank = 32", lora),
        ("recipe.lora_rank = 32 with engine_options.recompute = true", replace(lora, recompute=True)),
    ]
    budget = request.new_tokens
    while budget > 64:
        budget //= 2
        some = f"recipe.lora_rank = 32, engine_options.recompute = true and problems.max_new_tokens = {budget}"
        tries.append((some, replace(lora, recompute=True, new_tokens=budget)))
    found = next((text for text, other in tries if other.sizes() is not None), None)
    fixed, free = request.weights() / gigabytes, request.free / gigabytes
    advice = f"{found} would fit" if found else "take a smaller model or a larger GPU"
    return (
        f"engine_options.model: training takes {fixed:.1f} GiB for weights, gradients and optimizer beside the base "
        f"model ({lora.weights() / gigabytes:.1f} with LoRA), and room for at least one sequence of "
        f"{request.prompt_tokens + request.new_tokens} tokens; {free:.1f} GiB are free: {advice}."
    )
