"""A real model, SmolLM2-135M-Instruct: the engine beside transformers, on the checkpoint of `lm fetch`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from isocompute.core.allocation import Cell
from isocompute.rl.model.checkpoint import load_decoder, save_decoder
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.engine import SamplingSettings
from tests.rl.cells import points, run
from tests.rl.models import eager, logits_of, requests

PROMPTS = [
    [504, 3575, 282, 4649, 314],  # The capital of France is
    [65, 42, 1812, 314, 216, 33, 39, 1232, 216, 34, 37, 47, 330, 42],  # Q: What is 17 + 25? A:
    [1604, 3987, 46477, 24, 94, 727, 2367],  # def fibonacci(n):
    [6403, 1980, 253, 655],  # Once upon a time
]


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ours(smollm2: Path) -> Decoder:
    return load_decoder(smollm2)


@torch.no_grad()
def largest_difference(a: Decoder, b: transformers.PreTrainedModel) -> float:
    tokens = [torch.tensor([prompt]) for prompt in PROMPTS]
    return max(float((logits_of(a, t) - b(t).logits).abs().max()) for t in tokens)


def test_logits(ours: Decoder, theirs: transformers.PreTrainedModel) -> None:
    assert sum(p.numel() for p in ours.parameters()) == 134_515_008
    assert largest_difference(ours, theirs) < 1e-4


def test_greedy_decoding(ours: Decoder, theirs: transformers.PreTrainedModel) -> None:
    """Prompts of unequal length in one batch here, one by one there."""
    got = eager(ours, requests(PROMPTS[:2], seed=0, temperature=0.0), SamplingSettings(24))
    for row, prompt in enumerate(PROMPTS[:2]):
        wanted = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=24,
            min_new_tokens=24,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :]
        assert got.responses_BT[row].tolist() == wanted.tolist()


def test_checkpoint_opens_in_transformers(ours: Decoder, tmp_path: Path) -> None:
    save_decoder(ours, tmp_path / "copy")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "copy", dtype=torch.float32).eval()
    assert largest_difference(ours, again) < 1e-4


def test_a_run(smollm2: Path, tmp_path: Path) -> None:
    """Problems in the chat template, real stops, answers graded beside decoding, adapters trained, samples kept."""
    numbers = [(a, a + 3) for a in range(2, 10)]
    lines = [{"question": f"What is {a} + {b}? Only the number.", "answer": str(a + b)} for a, b in numbers]
    source = tmp_path / "sums.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)) + "\n")
    cell = Cell(
        name="run",
        problems_per_batch=2,
        rollouts_per_problem=3,
        update_steps=1,
        seed=0,
        problems={"source": str(source), "validation": 2, "max_new_tokens": 12, "stop": ["\n"]},
        recipe={"name": "grpo", "kl_coef": 0.0, "lora_rank": 4, "temperature": 0.8},
        evaluation={"points": 2, "samples": 1, "k": [1]},
        engine={"model": str(smollm2), "device": "cpu", "threads": 1, "save_model": True},
    )
    folder = run(cell, tmp_path / "run")
    last = points(folder)[-1]
    assert last["rollouts"] == 6 and last["logprob_gap"] < 1e-4 and last["truncated"] < 1
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 4
    for row in samples:
        (answer,) = (line["answer"] for line in lines if line["question"] == row["question"])
        assert row["stopped"] == row["response"].endswith(("<|im_end|>", "\n"))
        assert row["reward"] == 0.0 or answer in row["response"]
    assert (folder / "model" / "adapter_model.safetensors").stat().st_size < 8e6
