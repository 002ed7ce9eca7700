"""TRL's GRPOTrainer on a real model and text problems, for comparison with the engine: real stops, our verifiers.

python benchmarks/rl_trl.py FOLDER PROBLEMS [--problems-per-batch 32] [--rollouts-per-problem 32] [--max-new-tokens 256]
    [--temperature .6] [--steps 4] [--micro-batch 128] [--learning-rate 1e-6] [--device cuda]    (needs trl, datasets)

TRL generates with transformers, as it does without vLLM, and trains on policy with one update a batch: no KL penalty,
no gradient checkpointing, logging and checkpoints off, weights and arithmetic in bfloat16 on a GPU. A step is all of
it: generate, grade, advantages, one gradient, AdamW. The first step warms up.

    isocompute lm fetch smollm2 && python benchmarks/rl_trl.py smollm2 gsm8k.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

Reward = Callable[[list[str], list[int]], list[float]]
"""Grades responses, given as text without special tokens and the index of each one's prompt."""


def trl_steps(
    folder: Path,
    prompts: Sequence[str],
    reward: Reward,
    *,
    problems: int,
    rollouts: int,
    max_new_tokens: int,
    temperature: float,
    steps: int,
    micro_batch: int,
    device: str,
    learning_rate: float,
) -> list[dict[str, float]]:
    """Train for some steps of `problems` × `rollouts`; what each step took, the first (a warm-up) included.

    `prompts` are texts that the chat template has been applied to.
    """
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

    batch, gpu = problems * rollouts, device == "cuda"
    if batch % micro_batch or len(prompts) < problems:
        raise ValueError(f"{problems} × {rollouts} needs a micro-batch that divides it and as many prompts")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows: list[dict[str, float]] = []

    class Timer(TrainerCallback):
        """Adds the seconds of each step to what its reward call has noted."""

        started = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.started = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended = now()
            rows[-1]["seconds"] = ended - self.started
            self.started = ended

    def now() -> float:
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def graded(
        completions: list[str], completion_ids: list[list[int]], problem: list[int], **_: Any
    ) -> list[float]:  # once a step: all of a step's responses are generated together
        started = time.perf_counter()
        rewards = reward(completions, problem)
        rows.append(
            {
                "mean_length": statistics.fmean(map(len, completion_ids)),
                "truncated": statistics.fmean(ids[-1] != tokenizer.eos_token_id for ids in completion_ids),
                "mean_reward": statistics.fmean(rewards),
                "grading_seconds": time.perf_counter() - started,
            }
        )
        return rewards

    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trl.GRPOTrainer(
            model=str(folder),
            reward_funcs=graded,
            args=trl.GRPOConfig(
                output_dir=scratch,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=batch // micro_batch,
                steps_per_generation=batch // micro_batch,
                num_generations=rollouts,
                max_completion_length=max_new_tokens,
                temperature=temperature,
                max_steps=steps,
                learning_rate=learning_rate,
                lr_scheduler_type="constant",
                loss_type="grpo",
                beta=0.0,
                gradient_checkpointing=False,
                bf16=gpu,
                use_cpu=not gpu,
                model_init_kwargs={"dtype": "bfloat16" if gpu else "float32"},
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": list(prompts), "problem": list(range(len(prompts)))}),
            processing_class=tokenizer,
            callbacks=[Timer()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    if len(rows) != steps:
        raise RuntimeError(f"TRL generated {len(rows)} times in {steps} steps: it is not on policy")
    return rows


def main() -> None:
    from transformers import AutoTokenizer

    from isocompute.problems.load import load_problems

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkpoint with a chat template")
    parser.add_argument("source", help="problems: a file or gym:TASK")
    parser.add_argument("--problems-per-batch", type=int, default=32)
    parser.add_argument("--rollouts-per-problem", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    found = load_problems(options.source, size=256 if options.source.startswith("gym:") else None)
    chats = [problem.messages or ({"role": "user", "content": problem.question},) for problem in found.problems]
    rows = trl_steps(
        options.folder,
        [tokenizer.apply_chat_template(list(c), tokenize=False, add_generation_prompt=True) for c in chats],
        lambda texts, places: [found.verify(found.problems[i], t) for t, i in zip(texts, places, strict=True)],
        problems=options.problems_per_batch,
        rollouts=options.rollouts_per_problem,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        steps=options.steps,
        micro_batch=options.micro_batch,
        device=options.device,
        learning_rate=options.learning_rate,
    )
    for row in rows:
        print(json.dumps(row))
    batch = options.problems_per_batch * options.rollouts_per_problem
    seconds = statistics.median(row["seconds"] for row in rows[1:] or rows)
    print(f"{batch / seconds:,.1f} rollouts/s")


if __name__ == "__main__":
    main()
