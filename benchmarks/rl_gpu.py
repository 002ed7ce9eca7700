"""The engine on one GPU: speed on a real model and real text beside TRL, share of the hardware's bound, parity.

    python benchmarks/rl_gpu.py --model SMOLLM2 --gsm8k PROBLEMS.jsonl [--only speed,shapes,…] [--out result.json]

SMOLLM2 is the folder that `isocompute lm fetch smollm2` writes, PROBLEMS.jsonl has GSM8K's problems. Parts:

- `speed`: whole steps (sample to real stops, grade, advantages, one gradient, AdamW) on GSM8K with the chat template,
  32 × 32 and 64 × 64, at most 256 new tokens; on a mixture of short gym tasks, 64 × 64; medians. TRL's steps on GSM8K
  run in the same process (`benchmarks/rl_trl.py`).
- `idle`: share of the wall clock of two updates and an evaluation in which the GPU runs no kernel.
- `parity`: captured and eager engine on the same prompts; tokens beside a prompt of 300 tokens; log-prob gaps.
- `learning`: 40 updates of 32 × 32 on chain_sum; the curve and the seconds of training.
- `shapes` (synthetic): the shapes of Qwen2.5-0.5B and 1.5B with random weights, 32 × 64, at most 512 new tokens with
  lengths from a long-tailed distribution; share of the bound, in which each byte and operation is counted once.
- `chain` (synthetic): the built-in model's shape, 1,024 × 64 tokens, no stops.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isocompute.core.allocation import Cell
from isocompute.core.recipe import make_recipe
from isocompute.rl import loop
from isocompute.rl.bench import measure_machine
from isocompute.rl.engine import LmEngine
from isocompute.rl.loop import Training
from isocompute.rl.model.checkpoint import Model, load_model
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.captured import CapturedEngine
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import PromptGroup, RolloutEngine, SamplingSettings, sample, streams
from isocompute.rl.setup import CellSetup, EngineSpec, EvaluationSpec, choose_sizes, parameters, set_up
from isocompute.rl.tasks import ProblemsSpec, Task, Tasks
from isocompute.rl.update import score

GYM = {
    "sums": "gym:chain_sum?min_terms=2&max_terms=3&min_digits=1&max_digits=2",
    "short sums": "gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=2",
    "products": "gym:products?min_terms=2&max_terms=2&min_digits=1&max_digits=2",
}
SHAPES = {
    "Qwen2.5-0.5B": (151936, 896, 4864, 24, 14, 2, 64),
    "Qwen2.5-1.5B": (151936, 1536, 8960, 28, 12, 2, 128),
}
"""Vocabulary, width, feed-forward, layers, heads, key-value heads, head size; embeddings are tied."""


class Never:
    """A runner that never stops a run."""

    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        pass


def cell_of(args: argparse.Namespace, problems: dict[str, Any], bp: int, n: int, updates: int, **more: Any) -> Cell:
    recipe = {"name": "grpo", "kl_coef": 0.0, "temperature": 0.6, "learning_rate": 1e-6, "warmup_steps": 0}
    return Cell(
        name="speed",
        problems_per_batch=bp,
        rollouts_per_problem=n,
        update_steps=updates,
        seed=0,
        problems=problems,
        recipe=recipe | more.get("recipe", {}),
        evaluation={"points": 2, "samples": 4, **more.get("evaluation", {})},
        engine={"model": str(args.model), "device": args.device, **more.get("engine", {})},
    )


def gsm8k(args: argparse.Namespace, tokens: int = 256) -> dict[str, Any]:
    return {"source": str(args.gsm8k), "verifier": "math", "validation": 64, "max_new_tokens": tokens}


def timed(training: Training, updates: int, warm: int = 2) -> dict[str, Any]:
    """Medians over whole steps, the first few left out."""
    rows = []
    for _ in range(warm + updates):
        torch.cuda.synchronize()
        start, sampling, tokens = time.perf_counter(), training.sampling_seconds, training.tokens
        assert training.update()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
        rows.append((wall, training.sampling_seconds - sampling, training.tokens - tokens))
    rollouts = training.cell.rollouts_per_update
    wall, sampling, tokens = (statistics.median(column) for column in zip(*rows[warm:], strict=True))
    return {
        "rollouts": rollouts,
        "seconds": round(wall, 4),
        "sampling_seconds": round(sampling, 4),
        "rollouts_per_second": round(rollouts / wall, 1),
        "tokens_per_second": round(tokens / wall),
        "mean_response": round(tokens / rollouts, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "steps": [[round(x, 4) for x in row] for row in rows],
    }


def free(training: Training) -> None:
    training.pool.close()
    training.__dict__.clear()  # the caller holds it, too
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def speed(args: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {}
    gym = {"sources": GYM, "validation": 32, "max_new_tokens": 64}
    for name, problems, bp in (("gsm8k", gsm8k(args), 32), ("gsm8k", gsm8k(args), 64), ("gym", gym, 64)):
        began = time.perf_counter()
        training = Training(set_up(cell_of(args, problems, bp, bp, 100)))
        prepared = time.perf_counter() - began
        found = timed(training, args.steps) | {"prepare_seconds": round(prepared, 1), "logprob_gap": gap(training)}
        out[f"{name} {bp}x{bp}"] = found
        print(name, bp, {k: v for k, v in found.items() if k != "steps"}, flush=True)
        free(training)
    return out


def gap(training: Training) -> float:
    return training._sums["logprob_gap"] / max(1, training.step)


def trl(args: argparse.Namespace) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from benchmarks.rl_trl import trl_steps
    from isocompute.problems.load import load_problems

    problems = load_problems(str(args.gsm8k), verifier="math")
    tokenizer = AutoTokenizer.from_pretrained(str(args.model))
    prompts = [
        tokenizer.apply_chat_template(
            [dict(m) for m in p.messages or ({"role": "user", "content": p.question},)],
            tokenize=False,
            add_generation_prompt=True,
        )
        for p in problems.problems
    ]

    def reward(texts: list[str], which: list[int]) -> list[float]:
        return [problems.verify(problems.problems[i], text) for i, text in zip(which, texts, strict=True)]

    rows = trl_steps(
        args.model,
        prompts,
        reward,
        problems=32,
        rollouts=32,
        max_new_tokens=256,
        temperature=0.6,
        steps=args.trl_steps,
        micro_batch=128,
        device=args.device,
        learning_rate=1e-6,
    )
    seconds = statistics.median(row["seconds"] for row in rows[1:])
    found = {"seconds": seconds, "rollouts_per_second": round(1024 / seconds, 1), "steps": rows}
    print("TRL", found["rollouts_per_second"], "rollouts/s", flush=True)
    return found


def idle(args: argparse.Namespace) -> dict[str, Any]:
    """Union of the intervals in which a kernel runs, over the wall clock."""
    from torch.profiler import ProfilerActivity, profile

    problems = gsm8k(args) | {"validation": 256}
    training = Training(set_up(cell_of(args, problems, 32, 32, 100)))
    training.evaluate()
    training.update()
    out = {}
    for name, run in (("updates", lambda: [training.update() for _ in range(2)]), ("evaluation", training.evaluate)):
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            wall = time.perf_counter() - start
        events = found.profiler.kineto_results.events()
        spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if "CUDA" in str(e.device_type()))
        busy = end = 0
        for a, b in spans:
            busy += max(0, b - max(a, end))
            end = max(end, b)
        out[name] = {"wall": round(wall, 3), "idle": round(1 - busy / 1e9 / wall, 4)}
    print("idle", out, flush=True)
    free(training)
    return out


def parity(args: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {}
    tasks = set_up(cell_of(args, gsm8k(args, 128), 8, 8, 1)).tasks
    prompts = tasks.train.prompts[:24]
    groups = [PromptGroup(i, p, streams(0, np.arange(8) + 8 * i), 0.6) for i, p in enumerate(prompts)]
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = load_model(str(args.model), dtype=dtype, device=args.device)
        settings = SamplingSettings(128, stop_tokens=model.stop_tokens)
        longest = max(map(len, prompts)) + 300
        engines: list[Callable[..., RolloutEngine]] = [EagerEngine, CapturedEngine]
        eager, captured = (
            sample(make(model.decoder, settings, rows=256, prompt_tokens=longest), groups) for make in engines
        )
        width = min(eager.responses_BT.shape[1], captured.responses_BT.shape[1])
        equal = (eager.responses_BT[:, :width] == captured.responses_BT[:, :width]) & eager.mask_BT[:, :width]
        rows = (equal == eager.mask_BT[:, :width]).all(dim=1) & (eager.lengths_B == captured.lengths_B)
        out[f"rows with the same tokens, {dtype}"] = float(rows.float().mean())
        with torch.no_grad():
            scored, _ = score(model.decoder, captured, make_recipe({"temperature": 0.6}))
        found[dtype] = (captured, scored.cpu())
        inside = captured.mask_BT
        out[f"sampler to trainer, {dtype}"] = float((scored.cpu() - captured.logprobs_BT)[inside].abs().mean())
        # A prompt of 300 tokens and its rows beside 16 rows that were sampled without it.
        few = [PromptGroup(i, p, streams(9, np.arange(1) + i), 0.6) for i, p in enumerate(prompts[:16])]
        long = PromptGroup(99, (list(prompts[0]) * 10)[:300], streams(9, np.arange(40) + 99), 0.6)
        alone = sample(CapturedEngine(model.decoder, settings, rows=64, prompt_tokens=longest), few)
        beside = sample(CapturedEngine(model.decoder, settings, rows=64, prompt_tokens=longest), [*few, long])
        width = min(alone.responses_BT.shape[1], beside.responses_BT.shape[1])
        same = (alone.responses_BT[:, :width] == beside.responses_BT[:16, :width]).all(dim=1)
        out[f"rows of 16 unchanged beside a long prompt, {dtype}"] = int(same.sum())
        if dtype == torch.float32:
            exact = model
    captured, _ = found[torch.bfloat16]
    with torch.no_grad():
        scored, _ = score(exact.decoder, captured, make_recipe({"temperature": 0.6}))
    out["bf16 sampler to FP32 reference"] = float((scored.cpu() - captured.logprobs_BT)[captured.mask_BT].abs().mean())
    print("parity", out, flush=True)
    return out


def learning(args: argparse.Namespace) -> dict[str, Any]:
    problems = {"source": GYM["sums"] + "&size=2400", "validation": 256, "max_new_tokens": 64}
    cell = cell_of(args, problems, 32, 32, 40, recipe={"learning_rate": 1e-5}, evaluation={"points": 6})
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        LmEngine().run(cell, Path(folder), Never())
        wall = time.perf_counter() - began
        points = [json.loads(line) for line in (Path(folder) / "points.jsonl").read_text().splitlines()]
    keys = ("step", "avg@4", "seconds", "response_length", "logprob_gap", "rollouts_per_second")
    out = {"wall_seconds": round(wall, 1), "points": [{k: p.get(k) for k in keys} for p in points]}
    print("learning", out, flush=True)
    return out


# Synthetic parts


class LongTailed(CapturedEngine):
    """Ends each row at a length drawn from a log-normal distribution, as random weights write no stop token."""

    def _start(self, new: list[tuple[int, int, int]]) -> None:
        super()._start(new)
        slots = torch.tensor(self._used[-sum(count for _, _, count in new) :], device=self.device)
        rng = np.random.default_rng(self._submitted)
        lengths = np.exp(rng.normal(5.0, 0.8, len(slots))).clip(8, self.settings.max_new_tokens).astype(np.int32)
        self._state.limit_R[slots] = torch.from_numpy(lengths).to(self.device)


class Coin:
    """A cheap grader: right when the last token is even."""

    cheap = True

    def __call__(self, _: int, responses: Sequence[Sequence[int]], __: Sequence[bool]) -> list[float]:
        return [float(response[-1] % 2 == 0) for response in responses]


def synthetic(
    args: argparse.Namespace, config: DecoderConfig, *, bp: int, n: int, prompt: int, new: int, dtype: torch.dtype
) -> Training:
    torch.manual_seed(0)
    with torch.device(args.device):
        decoder = Decoder(config)
    for p in decoder.parameters():
        torch.nn.init.normal_(p, std=0.02) if p.ndim > 1 else None
    decoder = decoder.to(dtype).requires_grad_(False)
    decoder.reset_rope()
    decoder.compiled = True
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, config.vocab_size, (2 * bp, prompt)).tolist()
    task = Task("synthetic", [str(i) for i in range(2 * bp)], prompts, Coin(), str, [""] * 2 * bp)
    tasks = Tasks(task, task, {}, new)
    cell = cell_of(args, {}, bp, n, 100, engine={"memory_gib": 68})
    engine, recipe = EngineSpec.of(cell.engine), make_recipe(cell.recipe)
    model, evaluation = Model(Path(), decoder, ()), EvaluationSpec.of({"samples": 1, "k": [1]})
    sizes = choose_sizes(cell, engine, recipe, model, tasks, evaluation)
    problems = ProblemsSpec.of({"source": "chain:easy"})
    return Training(CellSetup(cell, engine, recipe, problems, evaluation, model, tasks, sizes))


def bound(config: DecoderConfig, lengths: np.ndarray, *, n: int, prompt: int, machine: Any) -> dict[str, float]:
    """Seconds that a step must take: every byte read once a decode step, every operation once."""
    weights = parameters(config)
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    groups, total = len(lengths) // n, float(lengths.sum())
    longest = [int(lengths[i * n : (i + 1) * n].max()) for i in range(groups)]
    read = int(lengths.max()) * weights * 2 + token * float((lengths * (lengths - 1) / 2).sum())
    read += token * prompt * sum(longest)  # a prompt once a step for all its rows
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    seen = float((lengths * (lengths - 1) / 2 + lengths * prompt).sum())
    decode = max(
        read / machine.bytes_per_second, (2 * weights * total + attention * seen) / machine.operations_per_second
    )
    passes = 6 * weights * (total + groups * prompt) + 3 * attention * seen
    optimizer = weights * (4 * 3 * 2 + 4 + 2)  # masters and two moments read and written, gradients, new weights
    train = passes / machine.operations_per_second + optimizer / machine.bytes_per_second
    return {"decode": decode, "train": train}


def shapes(args: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {}
    machine = measure_machine(torch.device(args.device), torch.bfloat16)
    loop.make_engine = lambda _, *parts, **sizes: LongTailed(*parts, **sizes)  # type: ignore[attr-defined]
    for name, (vocabulary, width, inner, layers, heads, groups, size) in SHAPES.items():
        config = DecoderConfig(
            model_type="qwen2",
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            head_dim=size,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            attention_bias=True,
            rope_theta=1e6,
        )
        torch.cuda.reset_peak_memory_stats()
        training = synthetic(args, config, bp=32, n=64, prompt=128, new=512, dtype=torch.bfloat16)
        found = timed(training, args.steps)
        assert training._last is not None
        floor = bound(config, training._last.lengths_B.numpy(), n=64, prompt=128, machine=machine)
        found |= {
            "bound": floor,
            "share": round(sum(floor.values()) / found["seconds"], 3),
            "sizes": str(training.sizes),
        }
        found["share_decode"] = round(floor["decode"] / found["sampling_seconds"], 3)
        found["share_train"] = round(floor["train"] / (found["seconds"] - found["sampling_seconds"]), 3)
        out[name] = found
        print(name, {k: v for k, v in found.items() if k != "steps"}, flush=True)
        free(training)
    return out | {"machine": vars(machine)}


def chain(args: argparse.Namespace) -> dict[str, Any]:
    config = replace(load_model("tiny").decoder.config, max_position_embeddings=128)
    out = {}
    for dtype in (torch.float32, torch.bfloat16):
        training = synthetic(args, config, bp=32, n=32, prompt=8, new=64, dtype=dtype)
        out[str(dtype)] = timed(training, 4 * args.steps, warm=4)
        print("chain", dtype, {k: v for k, v in out[str(dtype)].items() if k != "steps"}, flush=True)
        free(training)
    return out


PARTS = {f.__name__: f for f in (parity, speed, idle, learning, trl, chain, shapes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each batch")
    parser.add_argument("--trl-steps", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    for name in args.only.split(","):
        began = time.perf_counter()
        try:
            found[name] = PARTS[name](args)
        except Exception as error:  # the other parts are worth their numbers
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            print(name, found[name], flush=True)
        print(f"-- {name}: {time.perf_counter() - began:.0f} s", flush=True)
        torch.cuda.empty_cache()
        if args.out:
            args.out.write_text(json.dumps(found, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
