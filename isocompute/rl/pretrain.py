"""Pretrains base models for chain problems, for reinforcement learning to improve, and writes their tokenizer."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.core.arrays import Array, Ints
from isocompute.core.errors import InputError
from isocompute.problems.chain import OPERATIONS, SPECIAL, Chains, apply, make_chains, parse_chain, vocabulary
from isocompute.rl.model.attention import PackedAttention, Packing
from isocompute.rl.model.checkpoint import RECIPE_FILE, save_decoder
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder

_CONCENTRATION = 2.0
"""Sum of the Beta distribution's parameters; small, so that error rates differ much between facts."""
_PAD, _EOS, _EQUALS = range(len(SPECIAL))
_NUMBERS = len(SPECIAL) + len(OPERATIONS)
"""Token id of the number 0."""
_LEARNED = 0.9
"""Share of the loss of guessing above which a model has learned little more than the format."""


def write_chain_tokenizer(folder: Path, *, modulus: int, context: int) -> None:
    """Write a tokenizer with one token per word, which transformers can load too."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = vocabulary(modulus)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL[:2]))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "unk_token": SPECIAL[0],
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"pad_token_id": 0, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


@dataclass(frozen=True)
class PretrainSettings:
    """Problems, errors, schedule and model size of a pretraining run."""

    problems: str = "chain:all"
    wrong: float = 0.2
    """Share of wrong steps."""
    steps: int = 6000
    batch: int = 512
    learning_rate: float = 3e-3
    layers: int = 3
    width: int = 64
    heads: int = 4
    feed_forward: int = 192
    context: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Memory:
    """How often the traces get each fact (operation, left, right) wrong, and by how much."""

    wrong_OAB: Array
    slip_OAB: Ints
    """What is added to the correct result where a trace gets it wrong."""


def make_memory(*, modulus: int, wrong: float, seed: int) -> Memory:
    """Draw an error rate for each fact, with mean `wrong`, and its wrong result."""
    if not 0 <= wrong < 1:
        raise InputError(f"wrong = {wrong}; the share of wrong steps lies between 0 and 1.")
    rng = np.random.default_rng([seed, modulus, 7])
    shape = (len(OPERATIONS), modulus, modulus)
    chances = rng.beta(_CONCENTRATION * wrong, _CONCENTRATION * (1 - wrong), shape) if wrong else np.zeros(shape)
    return Memory(chances, rng.integers(1, modulus, shape))


def write_traces(chains: Chains, memory: Memory, rng: np.random.Generator) -> tuple[Ints, np.ndarray]:
    """Tokens of questions and traces, padded on the right, and a mask of the traces."""
    modulus, rows = chains.spec.modulus, np.arange(len(chains))
    longest = int(chains.steps_P.max())
    tokens_PT = np.full((len(chains), 3 * longest + 3), _PAD, dtype=np.int64)
    trace_PT = np.zeros(tokens_PT.shape, dtype=np.bool_)
    steps_P = chains.steps_P
    tokens_PT[:, 0] = chains.operands_PS[:, 0] + _NUMBERS
    value_P = chains.operands_PS[:, 0].copy()
    for s in range(longest):
        on = s < steps_P
        operation_P, operand_P = chains.operations_PS[on, s], chains.operands_PS[on, s + 1]
        tokens_PT[on, 2 * s + 1] = operation_P + len(SPECIAL)
        tokens_PT[on, 2 * s + 2] = operand_P + _NUMBERS
        fact = operation_P, value_P[on], operand_P
        slip_P = memory.slip_OAB[fact] * (rng.random(len(operand_P)) < memory.wrong_OAB[fact])
        value_P[on] = (apply(operation_P, value_P[on], operand_P, modulus) + slip_P) % modulus
        place_P = 2 * steps_P[on] + 2 + s
        tokens_PT[rows[on], place_P] = value_P[on] + _NUMBERS
        trace_PT[rows[on], place_P] = True
    tokens_PT[rows, 2 * steps_P + 1] = _EQUALS
    tokens_PT[rows, 3 * steps_P + 2] = _EOS
    trace_PT[rows, 3 * steps_P + 2] = True
    return tokens_PT, trace_PT


def pretrain(
    folder: str | Path,
    settings: PretrainSettings,
    *,
    device: str = "cpu",
    report: Callable[[int, Tensor], None] | None = None,
) -> Decoder:
    """Train a base model and write it as a checkpoint folder."""
    spec = parse_chain(settings.problems)
    if 3 * spec.longest + 3 > settings.context:
        raise InputError(
            f"chains of {spec.longest} steps take {3 * spec.longest + 3} tokens; the context is {settings.context}."
        )
    memory = make_memory(modulus=spec.modulus, wrong=settings.wrong, seed=settings.seed)
    torch.manual_seed(settings.seed)
    decoder = Decoder(_config(settings, spec.modulus))
    _initialise(decoder)
    decoder = decoder.to(device)
    rng = np.random.default_rng([settings.seed, 11])
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    late: deque[Tensor] = deque(maxlen=max(1, settings.steps // 20))
    for step in range(settings.steps):
        chains = make_chains(spec, settings.batch, seed=int(rng.integers(2**62)))
        tokens_BT, trace_BT = (torch.from_numpy(a).to(device) for a in write_traces(chains, memory, rng))
        optimizer.param_groups[0]["lr"] = settings.learning_rate * _warm_cosine(step, settings.steps)
        loss = trace_loss(decoder, tokens_BT, trace_BT)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        late.append(loss.detach())
        if report is not None:
            report(step + 1, loss.detach())
    reached, guessing = float(torch.stack(list(late)).mean()), _guessing(trace_BT, spec.modulus)
    if not math.isfinite(reached):
        raise InputError(f"{folder}: the loss is {reached}; lower the learning rate ({settings.learning_rate:g}).")
    _save(decoder, Path(folder), settings, spec.modulus)
    if reached > _LEARNED * guessing:
        warnings.warn(
            f"{folder}: the model has learned next to nothing: its loss is {reached:.2f}, that of guessing numbers "
            f"{guessing:.2f}. Lower the learning rate ({settings.learning_rate:g}), or take more steps.",
            stacklevel=2,
        )
    return decoder


def _guessing(trace_BT: Tensor, modulus: int) -> float:
    """The loss of a model that knows the format of a trace but none of its numbers."""
    numbers = trace_BT.sum(dim=1) - 1
    return float(numbers.sum() / trace_BT.sum()) * math.log(modulus)


def trace_loss(decoder: Decoder, tokens_BT: Tensor, trace_BT: Tensor) -> Tensor:
    """Mean cross-entropy of the tokens of the traces."""
    rows, width = len(tokens_BT), tokens_BT.shape[1] - 1
    packing = Packing.of([width] * rows, [], np.zeros(0, dtype=np.int64), tokens_BT.device)
    tokens_T = F.pad(tokens_BT[:, :-1].reshape(-1), (0, packing.padding))
    positions_T = torch.from_numpy(packing.positions).to(tokens_BT.device)
    hidden_TD = decoder(tokens_T, positions_T, PackedAttention(packing))[: rows * width]
    target_BT = trace_BT[:, 1:]
    return F.cross_entropy(decoder.logits(hidden_TD[target_BT.reshape(-1)]), tokens_BT[:, 1:][target_BT])


def _warm_cosine(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / max(1, steps // 50))
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _config(settings: PretrainSettings, modulus: int) -> DecoderConfig:
    return DecoderConfig(
        model_type="qwen3",
        vocab_size=len(vocabulary(modulus)),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        head_dim=settings.width // settings.heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        extra={"pad_token_id": _PAD, "eos_token_id": _EOS},
    )


def _initialise(decoder: Decoder) -> None:
    for name, parameter in decoder.named_parameters():
        if parameter.ndim > 1:
            scale = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
            torch.nn.init.normal_(parameter, std=scale)


def _save(decoder: Decoder, folder: Path, settings: PretrainSettings, modulus: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        write_chain_tokenizer(Path(scratch), modulus=modulus, context=settings.context)
        # A tenth of the pretraining rate suits reinforcement learning of models this small.
        settings_file = {
            "recipe": {"learning_rate": settings.learning_rate / 10, "lr_reference_batch": 1024},
            "pretrain": asdict(settings),
        }
        (Path(scratch) / RECIPE_FILE).write_text(json.dumps(settings_file, indent=1) + "\n")
        save_decoder(decoder, folder, tokenizer_from=scratch)
