"""A model ready for use: decoder, tokenizer, stop tokens, from a checkpoint folder, the hub, or the package itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from isocompute.core.errors import InputError
from isocompute.rl.checkpoint import load_decoder
from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["ANCHOR", "TINY", "Model", "load_model", "model_folder", "read_anchor"]

ANCHOR = "isocompute.json"
"""Beside a checkpoint: how it was made, and `recipe`, the recipe's fields that suit it (its learning rate)."""
TINY = "tiny"
"""Name of the base model that comes with the package."""


@dataclass(frozen=True)
class Model:
    """A language model and what is needed to talk to it."""

    folder: Path
    decoder: Decoder
    stop_tokens: tuple[int, ...]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """From `tokenizer.json`."""
        return read_tokenizer(self.folder)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.decoder.embed_tokens.weight.device


def model_folder(name: str) -> Path:
    """Where a model lies: `tiny`, a folder, or a name on the hub (fetched once, then from its cache)."""
    if name == TINY:
        return Path(__file__).parent / "tiny"
    folder = Path(name).expanduser()
    if (folder / "config.json").exists():
        return folder
    if folder.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no checkpoint there (a folder with config.json), nor is it '{TINY}'.")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as error:  # the hub raises what its transport raises; all of it means: not to be had
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{name}: no such folder, and not to be had from the hub ({first}).") from error


def load_model(name: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """Load a model by the name of its folder, on the hub, or `tiny`."""
    folder = model_folder(name)
    return Model(folder, load_decoder(folder, dtype=dtype, device=device).eval(), stop_tokens(folder))


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, cutting and padding nothing.

    `tokenizer.json` may store a truncation and a padding of whoever saved it; transformers sets both anew at every
    call, so a prompt is whole there, and has to be here.
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
    """Ids that end a response: of generation_config.json, else config.json, else the tokenizer's own eos."""
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
    """Ids that the model can say; one that it cannot would never end a response."""
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


def read_anchor(folder: Path) -> dict[str, Any]:
    """Recipe fields that suit this model, where its folder says so."""
    recipe = _json(folder / ANCHOR).get("recipe", {})
    if not isinstance(recipe, dict):
        raise InputError(f"{folder / ANCHOR}: 'recipe' is not a table of recipe fields.")
    return recipe


def context_length(folder: Path) -> int:
    """Tokens a model can hold."""
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
