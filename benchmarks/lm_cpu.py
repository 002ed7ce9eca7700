"""Rollouts a second on the CPU, side by side with TRL's GRPOTrainer: same model, prompts, lengths and GRPO update.

python benchmarks/lm_cpu.py [--threads 1] [--steps 15] [--json]      (needs `pip install trl datasets`)

The two alternate step by step in one process, so that whatever else the machine does falls on both. A step is all of
it: draw problems, sample, verify, advantages, one gradient, AdamW. Every response has all its tokens (no stop token
here, min_new_tokens there); TRL generates with transformers, as it does without vLLM, with gradient checkpointing and
logging off. Medians; the first two steps are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from isocompute.core.allocation import Cell
from isocompute.core.recipe import make_recipe
from isocompute.rl.loop import Training
from isocompute.rl.model.checkpoint import Model, load_decoder
from isocompute.rl.setup import CellSetup, EngineSpec, EvaluationSpec, Sizes
from isocompute.rl.tasks import ProblemsSpec, Task, Tasks

VOCABULARY, PROMPT, WARM_UP = 64, 8, 2
TARGET = 2.0


class Case(NamedTuple):
    """A batch: problems × rollouts of each, and tokens of a response."""

    problems: int
    rollouts: int
    tokens: int


CASES = (Case(4, 4, 16), Case(8, 8, 16), Case(32, 8, 16), Case(128, 8, 16), Case(32, 8, 64))


def make_folder(folder: Path) -> int:
    """A random Qwen3 of width 64 with two layers, and a tokenizer whose words are numbers; its parameters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(std=0.25)  # a policy that is not quite noise
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="0").save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def prompts_of(case: Case) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (case.problems, PROMPT), generator=generator).tolist()


class EvenIsRight:
    """Right when the last token is even: as trivial as TRL's reward below, and the same."""

    cheap = True

    def __call__(self, problem: int, responses: Sequence[Sequence[int]], stopped: Sequence[bool]) -> list[float]:  # noqa: ARG002
        return [float(response[-1] % 2 == 0) for response in responses]


def our_step(folder: Path, case: Case) -> Callable[[], None]:
    """The engine's own training of a cell; each call is one update."""
    names, prompts = [str(i) for i in range(case.problems)], prompts_of(case)
    task = Task("speed", names, prompts, EvenIsRight(), lambda ids: " ".join(map(str, ids)), names)
    model = Model(folder, load_decoder(folder), stop_tokens=())
    cell = Cell("speed", case.problems, case.rollouts, 10**6, 0, {}, {}, {})
    batch = case.problems * case.rollouts
    setup = CellSetup(
        cell,
        EngineSpec(device="cpu"),
        make_recipe({"name": "grpo", "kl_coef": 0.0}),
        ProblemsSpec.of({}),
        EvaluationSpec.of({}),
        model,
        Tasks(task, task, {}, case.tokens),
        Sizes(tokens=4096, rows=batch),
    )
    training = Training(setup)
    training.evaluated = len(training.grid)  # none of the steps is followed by an evaluation

    def step() -> None:
        before = training.tokens
        assert training.update()
        assert training.tokens - before == batch * case.tokens

    return step


def alternate(folder: Path, case: Case, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of every step: ours, TRL's."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    step = our_step(folder, case)
    ours: list[float] = []
    theirs: list[float] = []

    class Alternate(TrainerCallback):
        """After each of TRL's steps, one of ours, outside TRL's time."""

        resumed = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.resumed = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended = time.perf_counter()
            theirs.append(ended - self.resumed)
            step()
            self.resumed = time.perf_counter()
            ours.append(self.resumed - ended)

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        assert all(len(row) == case.tokens for row in completion_ids)
        return [float(row[-1] % 2 == 0) for row in completion_ids]

    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl.GRPOTrainer(
            model=str(folder),
            reward_funcs=reward,
            args=trl.GRPOConfig(
                output_dir=scratch,
                per_device_train_batch_size=case.problems * case.rollouts,
                num_generations=case.rollouts,
                max_completion_length=case.tokens,
                generation_kwargs={"min_new_tokens": case.tokens},
                max_steps=steps + WARM_UP,
                loss_type="grpo",
                beta=0.0,
                top_k=0,
                lr_scheduler_type="constant",
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                model_init_kwargs={"dtype": "float32"},
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": [" ".join(map(str, p)) for p in prompts_of(case)]}),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[Alternate()],
        )
        trainer.train()
    return ours[WARM_UP:], theirs[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=15, help="of each trainer and batch")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    out, sys.stdout = sys.stdout, sys.stderr  # transformers prints its summary
    with tempfile.TemporaryDirectory() as name:
        parameters = make_folder(Path(name))
        for case in CASES:
            ours, theirs = alternate(Path(name), case, options.steps)
            batch = case.problems * case.rollouts
            mine, yours = statistics.median(ours), statistics.median(theirs)
            rows.append(
                {
                    "rollouts": batch,
                    "tokens": case.tokens,
                    "isocompute_seconds": mine,
                    "trl_seconds": yours,
                    "isocompute_rollouts_per_second": batch / mine,
                    "trl_rollouts_per_second": batch / yours,
                    "ratio": yours / mine,
                    "ratio_of_best_steps": min(theirs) / min(ours),
                }
            )
    sys.stdout = out
    if options.json:
        report = {"threads": options.threads, "parameters": parameters, "steps": options.steps, "batches": rows}
        print(json.dumps(report))
        return
    print(f"Qwen3, {parameters:,} parameters, {options.threads} thread(s), medians of {options.steps} steps")
    print("| rollouts × tokens | isocompute, s a step | TRL, s a step | isocompute, rollouts/s | TRL | ratio | best |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['rollouts']:,} × {row['tokens']} | {row['isocompute_seconds']:.4f} | {row['trl_seconds']:.4f} | "
            f"{row['isocompute_rollouts_per_second']:,.0f} | {row['trl_rollouts_per_second']:,.0f} | "
            f"{row['ratio']:.1f} | {row['ratio_of_best_steps']:.1f} |"
        )
    missed = [row for row in rows if row["ratio"] < TARGET]
    print(f"target, {TARGET:g} times TRL: {'met' if not missed else f'missed by {len(missed)} of {len(rows)} batches'}")


if __name__ == "__main__":
    main()
