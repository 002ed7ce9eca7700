"""Hugging Face checkpoints in and out: weights in safetensors (one file or shards), tokenizer, stop tokens.

Only safetensors are read: nothing is unpickled. A checkpoint written here opens in transformers and vLLM.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe, current_names
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "isocompute.json",
)
_SHARD_BYTES = 4 * 2**30
RECIPE_FILE = "isocompute.json"
"""A file beside a checkpoint: how it was made, and `recipe`, the recipe fields that suit it (its learning rate)."""
TINY = "tiny"
"""Name of the base model that comes with the package."""


def load_decoder(folder: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Decoder:
    """A decoder with the weights of a checkpoint folder, which must hold exactly the decoder's weights, all finite."""
    folder = Path(folder)
    config = DecoderConfig.read(folder)
    fresh = _empty(config, dtype, device)
    wanted = {part.name: part for part in fresh.parts()}
    for name, tensor in _tensors(folder):
        if name not in wanted:
            if name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq"):  # tied; computed from config.json
                continue
            raise InputError(f"{folder}: '{name}' has no place in the model that config.json describes.")
        here = wanted.pop(name)
        into = here.of(here.parameter)
        if into.shape != tensor.shape:
            raise InputError(
                f"{folder}: '{name}' is {tuple(tensor.shape)}, config.json says {tuple(into.shape)}; they do not "
                "belong together."
            )
        if not bool(tensor.isfinite().all()):
            raise InputError(
                f"{folder}: '{name}' holds weights that are NaN or infinite; the model was saved after it diverged "
                "or is damaged. Take an earlier checkpoint, or fetch it again."
            )
        with torch.no_grad():
            into.copy_(tensor)
    if wanted:
        raise InputError(f"{folder}: the weight '{min(wanted)}' is missing ({len(wanted)} in all); is a shard absent?")
    return fresh


def _empty(config: DecoderConfig, dtype: torch.dtype, device: str) -> Decoder:
    """A decoder with uninitialised weights, which saves drawing random ones."""
    with torch.device("meta"):
        decoder = Decoder(config).to(dtype)
    decoder = decoder.to_empty(device=device)
    if config.tie_word_embeddings:
        decoder.lm_head.weight = decoder.embed_tokens.weight
    decoder.reset_rope()
    return decoder


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint, under the decoder's names: without the leading `model.`."""
    index = folder / _INDEX
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [_WEIGHTS]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("weight_map has to name files")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: damaged ({error}); fetch it again.") from error
    for name in names:
        path = folder / name
        if not path.exists():
            raise InputError(f"{path}: not there; this engine reads safetensors (convert .bin weights first).")
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - safe_open is no dictionary
                    yield key.removeprefix("model."), file.get_tensor(key)
        except SafetensorError as error:
            raise InputError(f"{path}: damaged ({error}); fetch it again.") from error


def save_decoder(
    decoder: Decoder, folder: str | Path, *, tokenizer_from: str | Path | None = None, shard_bytes: int = _SHARD_BYTES
) -> None:
    """Write a checkpoint folder atomically, with a copy of the tokenizer's files."""
    with _written(Path(folder)) as scratch:
        config = {**decoder.config.to_json(), "torch_dtype": str(decoder.dtype).removeprefix("torch.")}
        (scratch / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        _write_weights(decoder, scratch, shard_bytes)
        for name in _TOKENIZER_FILES if tokenizer_from is not None else ():
            source = Path(str(tokenizer_from)) / name
            if source.exists():
                shutil.copy(source, scratch / name)


@contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """A scratch folder that replaces the folder once everything is in it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield scratch
        scratch.chmod(0o755)
        for path in scratch.iterdir():
            path.chmod(0o644)  # safetensors makes files that only their owner can read
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            scratch.rename(folder)
            shutil.rmtree(old)
        else:
            scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_weights(decoder: Decoder, folder: Path, shard_bytes: int) -> None:
    named = {part.name: part.of(part.parameter.detach()).contiguous() for part in decoder.parts()}
    weights = {name if name == "lm_head.weight" else f"model.{name}": tensor for name, tensor in named.items()}
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        bytes_here = tensor.numel() * tensor.element_size()
        if size + bytes_here > shard_bytes and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += bytes_here
    if len(shards) == 1:
        save_file(shards[0], folder / _WEIGHTS, metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file_name, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file_name)
    total = sum(t.numel() * t.element_size() for t in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def save_policy(decoder: Decoder, folder: Path, *, base: Path, recipe: Recipe) -> None:
    """Write trained weights: a checkpoint, or adapters in PEFT's format, which name the base model's folder."""
    if recipe.lora_rank is None:
        save_decoder(decoder, folder, tokenizer_from=base)
        return
    tensors = {}
    for name, owner, projection in decoder.projections():
        assert projection.lora_a is not None
        assert projection.lora_b is not None
        for one, a, b in zip(name, projection.lora_a, projection.lora_b, strict=True):
            prefix = f"base_model.model.model.{owner}.{one}"
            tensors[f"{prefix}.lora_A.weight"] = a.detach().contiguous()
            tensors[f"{prefix}.lora_B.weight"] = b.detach().contiguous()
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.resolve()),
        "r": recipe.lora_rank,
        "lora_alpha": recipe.lora_scale * recipe.lora_rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({one for names, _, _ in decoder.projections() for one in names}),
        "inference_mode": True,
    }
    with _written(folder) as scratch:
        (scratch / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        save_file(tensors, scratch / "adapter_model.safetensors", metadata={"format": "pt"})


@dataclass(frozen=True)
class Model:
    """A language model and what sampling from it needs."""

    folder: Path
    decoder: Decoder
    stop_tokens: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.decoder.device


def model_folder(name: str) -> Path:
    """The folder of `tiny`, of a path, or of a model on the hub, which is downloaded once and then cached."""
    if name == TINY:
        return Path(__file__).parent / "tiny"
    folder = Path(name).expanduser()
    if (folder / "config.json").exists():
        return folder
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{name}: holds adapters; merge them into their base model first (docs/how-to/train-a-model.md says how)."
        )
    if folder.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no checkpoint there (a folder with config.json), nor is it '{TINY}'.")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as error:  # the hub may raise any error of its transport
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{name}: no such folder, and the hub does not give it ({first}).") from error


def load_model(name: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """Load a model from a folder, from the hub, or the built-in `tiny`."""
    folder = model_folder(name)
    return Model(folder, load_decoder(folder, dtype=dtype, device=device).eval(), stop_tokens(folder))


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without truncation and padding.

    `tokenizer.json` may store both, and transformers overrides them at each call. So does this function.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        raise InputError(f"{path}: not there; save the tokenizer with save_pretrained of a fast tokenizer.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path}: not a tokenizer ({error}).") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def stop_tokens(folder: Path) -> tuple[int, ...]:
    """Ids that end a response: from generation_config.json, else config.json, else the tokenizer's eos token."""
    for name in ("generation_config.json", "config.json"):
        ids = _json(folder / name).get("eos_token_id")
        if ids is not None and ids != []:
            return _token_ids(ids if isinstance(ids, list) else [ids], folder, f"{folder / name}: eos_token_id")
    eos = _json(folder / "tokenizer_config.json").get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    found = read_tokenizer(folder).token_to_id(eos) if isinstance(eos, str) else None
    if found is None:
        raise InputError(
            f"{folder}: no stop token; set eos_token_id in generation_config.json, or eos_token of the tokenizer."
        )
    return _token_ids([found], folder, f"{folder / 'tokenizer_config.json'}: eos_token '{eos}'")


def _token_ids(ids: Sequence[Any], folder: Path, where: str) -> tuple[int, ...]:
    """Check that the model can sample these ids; otherwise no response would end."""
    wrong = [i for i in ids if isinstance(i, bool) or not isinstance(i, int)]
    if wrong:
        raise InputError(f"{where}: {wrong[0]!r} is not a token's id; write its number, as tokenizer.json has it.")
    check_vocabulary(ids, folder, where)
    return tuple(ids)


def check_vocabulary(ids: Iterable[int], folder: Path, where: str) -> None:
    """Refuse tokens for which the model has no embedding."""
    size = DecoderConfig.read(folder).vocab_size
    beyond = [i for i in ids if not 0 <= i < size]
    if beyond:
        raise InputError(
            f"{where}: token {beyond[0]} is beyond the {size} of vocab_size in {folder / 'config.json'}; "
            "tokenizer and weights do not belong together."
        )


def recipe_defaults(folder: Path) -> dict[str, Any]:
    """Recipe fields that suit this model, if its folder names some."""
    recipe = _json(folder / RECIPE_FILE).get("recipe", {})
    if not isinstance(recipe, dict):
        raise InputError(f"{folder / RECIPE_FILE}: 'recipe' is not a table of recipe fields.")
    return current_names(recipe)


def context_length(folder: Path) -> int:
    """The model's context length in tokens."""
    return DecoderConfig.read(folder).max_position_embeddings


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}).") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a table of fields; take the checkpoint's own file.")
    return data
