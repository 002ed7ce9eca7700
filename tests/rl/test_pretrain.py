from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from isocompute.core.errors import InputError
from isocompute.problems.chain import OPERATIONS, Chains, make_chains, parse_chain, vocabulary
from isocompute.rl.evaluation import Evaluator
from isocompute.rl.grading import GradingPool
from isocompute.rl.model.checkpoint import load_model, model_folder, read_tokenizer
from isocompute.rl.pretrain import PretrainSettings, make_memory, pretrain, write_traces
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import SamplingSettings
from isocompute.rl.tasks import ProblemsSpec, make_tasks
from tests.rl.models import logits_of

WORDS = vocabulary(23)


def texts(chains: Chains, wrong: float, *, seed: int = 0) -> list[tuple[str, str]]:
    """Question and trace of every chain as text, read from the tokens and the mask."""
    memory = make_memory(modulus=23, wrong=wrong, seed=0)
    tokens_PT, trace_PT = write_traces(chains, memory, np.random.default_rng(seed))
    out = []
    for tokens, trace in zip(tokens_PT, trace_PT, strict=True):
        words = [WORDS[token] for token in tokens]
        length = words.index("=") + 1
        assert trace.sum() == trace[length:].sum()  # the question is not trained on, nor is the padding
        out.append((" ".join(words[:length]), " ".join(w for w, on in zip(words, trace, strict=True) if on)))
    return out


def facts(question: str, trace: str) -> list[tuple[tuple[int, str, int], int]]:
    """(left, operation, right) and what the trace makes of it, step by step from its own results."""
    words, results = question.split(), trace.removesuffix(" <eos>").split()
    left, out = int(words[0]), []
    for operation, right, result in zip(words[1:-1:2], words[2:-1:2], results, strict=True):
        out.append(((left, operation, int(right)), int(result)))
        left = int(result)
    return out


def right_result(fact: tuple[int, str, int]) -> int:
    left, operation, right = fact
    return int({"+": left + right, "-": left - right, "*": left * right}[operation] % 23)


def test_traces_without_wrong_steps_are_right():
    chains = make_chains(parse_chain("chain:1-6"), 200, seed=0)
    for i, (question, trace) in enumerate(texts(chains, 0.0)):
        assert question == chains.question(i)
        results = [str(r) for r in chains.results_PS[i, : chains.steps_P[i]]]
        assert trace == " ".join([*results, "<eos>"])


@pytest.mark.parametrize("wrong", [0.05, 0.2, 0.6])
def test_the_share_of_wrong_steps_and_one_slip_for_each_fact(wrong: float):
    chains = make_chains(parse_chain("chain:all"), 4000, seed=1)
    slips: dict[tuple[int, str, int], set[int]] = {}
    steps = missed = 0
    for question, trace in texts(chains, wrong):
        for fact, result in facts(question, trace):
            steps += 1
            if result != right_result(fact):
                missed += 1
                slips.setdefault(fact, set()).add(result)
    # 3 · 23² facts whose own chances have a standard deviation of up to .29: the mean is known to about .015 and less.
    assert missed / steps == pytest.approx(wrong, abs=0.03)
    assert slips and all(len(results) == 1 for results in slips.values())


def test_facts_differ_in_their_chance():
    memory = make_memory(modulus=23, wrong=0.2, seed=0)
    assert memory.wrong_OAB.shape == (len(OPERATIONS), 23, 23)
    assert (memory.slip_OAB % 23 != 0).all()
    assert memory.wrong_OAB.mean() == pytest.approx(0.2, abs=0.02)
    assert (memory.wrong_OAB < 0.02).mean() > 0.2 and (memory.wrong_OAB > 0.5).mean() > 0.05
    with pytest.raises(InputError, match="share of wrong steps"):
        make_memory(modulus=23, wrong=1.0, seed=0)


def opens_in_transformers(folder: Path) -> None:
    """Equal logits, and a tokenizer that encodes and decodes."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_model(str(folder)).decoder
    tokens = torch.randint(0, ours.config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(logits_of(ours, tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "7 + 3 * 5 ="
    ids = tokenizer(text)["input_ids"]
    assert ids == read_tokenizer(folder).encode(text).ids == [13, 3, 9, 5, 11, 2]
    assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0)


def test_a_few_steps_write_a_checkpoint(tmp_path: Path):
    settings = PretrainSettings(problems="chain:1-3", steps=12, batch=64, layers=1, width=32, heads=2, feed_forward=48)
    losses: list[float] = []
    with pytest.warns(UserWarning, match="learned next to nothing: its loss is"):  # twelve steps are few
        pretrain(tmp_path / "base", settings, report=lambda _, loss: losses.append(float(loss)))
    assert len(losses) == 12 and losses[-1] < losses[0]
    opens_in_transformers(tmp_path / "base")
    anchor = json.loads((tmp_path / "base" / "isocompute.json").read_text())
    assert anchor["pretrain"]["problems"] == "chain:1-3"
    assert anchor["recipe"]["learning_rate"] == pytest.approx(3e-4)
    with pytest.warns(UserWarning, match="Lower the learning rate"):
        again = pretrain(tmp_path / "again", settings)
    first, second = (load_model(str(tmp_path / name)).decoder.state_dict() for name in ("base", "again"))
    assert all(torch.equal(first[name], second[name]) for name in again.state_dict())


def test_chains_longer_than_the_context_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="chains of 30 steps take 93 tokens; the context is 64"):
        pretrain(tmp_path / "base", PretrainSettings(problems="chain:30"))
    assert not (tmp_path / "base").exists()


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path):
    settings = PretrainSettings(problems="chain:1-4?modulus=7", steps=4, batch=8, learning_rate=float("inf"))
    with pytest.raises(InputError, match=r"the loss is nan; lower the learning rate \(inf\)"):
        pretrain(tmp_path / "base", settings)
    assert not (tmp_path / "base").exists()


def test_the_model_that_ships():
    folder = model_folder("tiny")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2_000_000
    opens_in_transformers(folder)


def test_its_pass_rates_spread():
    model = load_model("tiny")
    tasks = make_tasks(ProblemsSpec.of({"source": "chain:easy", "size": 1}), model.folder)
    settings = SamplingSettings(tasks.max_new_tokens, stop_tokens=model.stop_tokens)
    engine = EagerEngine(model.decoder, settings, rows=4096, prompt_tokens=16)
    counts = Evaluator(engine, GradingPool()).count(tasks.validation, samples=16, seed=0, temperature=0.6)
    rates_P = counts.correct_P / 16
    assert 0.35 < rates_P.mean() < 0.65
    assert ((rates_P > 0) & (rates_P < 1)).mean() > 0.5
    assert rates_P.std() > 0.25  # a coin of the same mean would give .12
    assert counts.truncated < 0.01
