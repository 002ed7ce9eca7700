"""Speed of the language-model engine on one GPU, beside TRL's GRPOTrainer on the same models, prompts and lengths.

    python benchmarks/lm_gpu.py --out results/lm-gpu.json                # everything
    python benchmarks/lm_gpu.py --parts step --batches 256 1024          # some of it

Parts: `parity` (log-probs and gradients of sampler, trainer, plain path and FP32, of random weights and of the
built-in base), `step` (whole steps of three sizes), `large` (a 135M-parameter model of SmolLM2's shape, 256 new
tokens), `trl` and `trl-large` (the same by TRL), `stack` (16 cells of 256 rollouts), `learning` (fast and plain path on
chain:easy), `growth` (with length and parameters).

The small model is a 1.8M-parameter Qwen3-style decoder (4 layers, width 192, 4 heads, feed-forward 512) on 14-token
chain prompts; 64 new tokens are forced on both sides, so tokens a second compare like with like. GRPO, one update a
batch, bf16, random weights. Times are medians over steps after warm-up, the device synchronised.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import shlex
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from isocompute.rl.fast.replay import Replay
from isocompute.rl.fast.stacked import Stack
from isocompute.rl.fast.step import Part, Step, compile_decoder
from lm_gpu_trl import measure_trl

from isocompute.core.cell import Cell
from isocompute.core.recipe import make_recipe
from isocompute.problems.chain import distinct_chains, parse_chain, vocabulary
from isocompute.rl.engine import LmEngine
from isocompute.rl.model.checkpoint import TINY, load_model, model_folder
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.optimizer import Optimizer
from isocompute.rl.rollout.eager import SamplingSettings, sample
from isocompute.rl.rollout.rollouts import Rollouts
from isocompute.rl.scoring import score
from isocompute.rl.setup import memory_budget, training_rows
from isocompute.rl.tasks import ChainVerifier, ProblemsSpec, Task, make_tasks

MODULUS, PROMPT, NEW, PER_PROMPT = 97, 14, 64, 8
LARGE_NEW, LARGE_ROLLOUTS, TRL_LARGE_AT_ONCE = 256, 1024, 128
RECIPE = make_recipe({"name": "grpo", "kl_coef": 0.0, "learning_rate": 1e-6})


def decoder_config(**changes: Any) -> DecoderConfig:
    """The small model of the comparison."""
    values: dict[str, Any] = {
        "model_type": "qwen3",
        "vocab_size": len(vocabulary(MODULUS)),
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 48,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "extra": {"pad_token_id": 0, "eos_token_id": 1},
    }
    return DecoderConfig(**{**values, **changes})


def large_config() -> DecoderConfig:
    """The shape of SmolLM2-135M, a Llama."""
    return decoder_config(
        model_type="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=2048,
    )


def make_decoder(config: DecoderConfig, device: str, dtype: torch.dtype) -> Decoder:
    """Random weights of a realistic size."""
    torch.manual_seed(0)
    decoder = Decoder(config)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.05 if "embed" in name else parameter.shape[1] ** -0.5)
    return decoder.to(device=device, dtype=dtype).eval()


def make_task(size: int, device: str) -> Task:
    """14-token prompts: chains of six operations."""
    chains = distinct_chains(parse_chain(f"chain:6?modulus={MODULUS}"), size, seed=0)
    ids = {word: i for i, word in enumerate(vocabulary(MODULUS))}
    prompts = [[ids[word] for word in chains.question(i).split()] for i in range(size)]
    verify = ChainVerifier(chains.answers_P + ids["0"], torch.device(device))
    return Task("bench", [str(i) for i in range(size)], prompts, verify)


def make_step(
    decoder: Decoder,
    base: Decoder,
    task: Task,
    rollouts: int,
    *,
    new: int = NEW,
    stops: tuple[int, ...] = (),
    micro_batch: int = 1 << 30,
) -> Step:
    """A step of so many rollouts, its problems chosen."""
    step = Step(
        [make_part(decoder, base, task, rollouts)],
        decoder,
        per_prompt=PER_PROMPT,
        max_new_tokens=new,
        stop_tokens=stops,
        micro_batch=micro_batch,
    )
    step.fill()
    return step


def make_part(decoder: Decoder, base: Decoder, task: Task, rollouts: int) -> Part:
    """A cell with its problems chosen."""
    optimizer = Optimizer(list(decoder.parameters()), RECIPE, flat=True)
    part = Part(decoder, base, optimizer, task, RECIPE, problems=rollouts // PER_PROMPT)
    part.index_P.copy_(torch.arange(rollouts // PER_PROMPT))
    return part


def make_stack(base: Decoder, task: Task, cells: int, rollouts: int) -> Step:
    """A step of several cells of so many rollouts each, their weights stacked."""
    decoders = [copy.deepcopy(base) for _ in range(cells)]
    parts = [make_part(decoder, base, task, rollouts) for decoder in decoders]
    stack = Stack(decoders)
    step = Step(
        parts,
        stack,
        per_prompt=PER_PROMPT,
        max_new_tokens=NEW,
        stop_tokens=(),
        micro_batch=cells * rollouts,
        weights=stack.weights,
    )
    step.fill()
    step.generator.seed.copy_(torch.arange(cells))
    return step


def replayed(step: Step) -> Replay[None]:
    """A step as a graph."""
    return Replay(step.body, on_gpu=True, warm_up=step.warm_up)


def timed(run: Callable[[], object], *, repeats: int, warm: int = 2) -> float:
    """Median seconds of a call, by events on the device."""
    for _ in range(warm):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def graphed(body: Callable[[], object]) -> Callable[[], None]:
    """A call as the replay of a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


def sampling_bytes(config: DecoderConfig, rollouts: int, new: int) -> dict[str, float]:
    """Bytes of keys and values that sampling must read, all of a row's once a token: `rows` counts a prompt for each of
    its rollouts, `shared` once a problem, which is how the kernels store it.
    """
    slot = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    own, prompt = sum(range(new)) * slot * rollouts, new * PROMPT * slot * rollouts
    return {"rows": own + prompt, "shared": own + prompt / PER_PROMPT}


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    a = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / timed(lambda: b.copy_(a), repeats=10)


@torch.no_grad()
def parity(decoder: Decoder, task: Task, rollouts: int, *, new: int, stops: tuple[int, ...] = ()) -> dict[str, float]:
    """Mean distances between log-probs of the same tokens: the kernels' sampler, the fast and the plain trainer's pass,
    the plain sampler beside its own trainer, and the same weights in FP32.
    """
    step = make_step(decoder, decoder, task, rollouts, new=new, stops=stops)
    step.generator.seed.fill_(3)
    got = step.generator.run()
    fast, _ = score(decoder, got, fixed=PER_PROMPT)
    plain, _ = score(decoder, got)
    settings = SamplingSettings(new, temperature=RECIPE.temperature, stop_tokens=stops)
    slow = sample(decoder, task.prompts[: rollouts // PER_PROMPT], settings, seed=3, per_prompt=PER_PROMPT)
    exact, _ = score(copy.deepcopy(decoder).float(), got)
    of_slow = score(decoder, slow)[0][slow.mask_BT]
    mask_BT, used = got.mask_BT, slow.responses_BT.shape[1]

    def gap(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a - b)[mask_BT].abs().mean())

    return {
        "sampler_to_trainer": gap(got.logprobs_BT, fast),
        "largest": float((got.logprobs_BT - fast)[mask_BT].abs().max()),
        "fast_to_plain_trainer": gap(fast, plain),
        "plain_sampler_to_plain_trainer": float((slow.logprobs_BT[slow.mask_BT] - of_slow).abs().mean()),
        "fast_trainer_to_fp32": gap(fast, exact),
        "plain_trainer_to_fp32": gap(plain, exact),
        "gradient_fast_to_plain": gradient_gap(decoder, got),
        "mean_logprob": float(exact[mask_BT].mean()),
        "same_tokens": float((slow.responses_BT == got.responses_BT[:, :used])[slow.mask_BT].float().mean()),
    }


@torch.enable_grad()
def gradient_gap(decoder: Decoder, rollouts: Rollouts) -> float:
    """Distance between the gradients of the fast and the plain pass, as a share of the gradient: of a random sum of
    log-probs and entropies.
    """
    mask_BT, parameters = rollouts.mask_BT, list(decoder.parameters())
    torch.manual_seed(1)
    weights = [torch.randn(mask_BT.shape, device=mask_BT.device) * mask_BT for _ in "le"]
    fast, plain = (
        torch.cat([grad.float().flatten() for grad in torch.autograd.grad(loss, parameters)])
        for loss in (
            sum((value * weight).sum() for value, weight in zip(both, weights, strict=True))
            for both in (score(decoder, rollouts, fixed=PER_PROMPT), score(decoder, rollouts))
        )
    )
    return float((fast - plain).norm() / plain.norm())


def random_parity(dtype: torch.dtype, device: str = "cuda") -> dict[str, float]:
    """Of random weights: flat distributions over long responses, the hardest case."""
    return parity(make_decoder(decoder_config(), device, dtype), make_task(64, device), 64, new=NEW)


def base_parity(dtype: torch.dtype, device: str = "cuda", rollouts: int = 1024) -> dict[str, float]:
    """Of the built-in base model on chain:easy."""
    model = load_model(TINY, dtype=dtype, device=device)
    tasks = make_tasks(ProblemsSpec(source="chain:easy"), model_folder(TINY), torch.device(device))
    return parity(model.decoder, tasks.train, rollouts, new=tasks.max_new_tokens, stops=model.stop_tokens)


def measure_step(
    config: DecoderConfig, rollouts: int, *, new: int = NEW, repeats: int, micro_batch: int = 1 << 30
) -> dict[str, Any]:
    """The whole step and sampling alone, both as CUDA graphs."""
    task = make_task(max(2048, rollouts // PER_PROMPT), "cuda")
    decoder = make_decoder(config, "cuda", torch.bfloat16)
    base = copy.deepcopy(decoder)
    compile_decoder(decoder)
    step = make_step(decoder, base, task, rollouts, new=new, micro_batch=micro_batch)
    run, started = replayed(step), time.perf_counter()
    run()
    torch.cuda.synchronize()
    ready = time.perf_counter() - started
    whole = timed(run, repeats=repeats)
    del run
    torch.cuda.empty_cache()
    sampling = timed(graphed(step.generator.run), repeats=3 if new > NEW else repeats, warm=1)
    return {
        "rollouts": rollouts,
        "new_tokens": new,
        "parameters": sum(p.numel() for p in decoder.parameters()),
        "steps": repeats,
        "capture_s": ready,
        "step_ms": whole * 1e3,
        "sampling_ms": sampling * 1e3,
        "tokens_per_s": rollouts * new / whole,
        "rollouts_per_s": rollouts / whole,
    }


def measure_large(*, repeats: int) -> dict[str, Any]:
    """The 135M-parameter model; its micro-batch is what the engine would choose."""
    config = large_config()
    rows = training_rows(
        config, tokens=PROMPT + LARGE_NEW, dtype=torch.bfloat16, budget=memory_budget(torch.device("cuda"))
    )
    torch.cuda.reset_peak_memory_stats()
    found = measure_step(config, LARGE_ROLLOUTS, new=LARGE_NEW, repeats=repeats, micro_batch=rows)
    return {**found, "micro_batch": rows, "peak_bytes": torch.cuda.max_memory_allocated()}


def measure_stack(cells: int, rollouts: int, *, repeats: int) -> dict[str, Any]:
    """Several cells of one shape against one after another: stacked, and each as a graph on a stream of its own."""
    task = make_task(2048, "cuda")
    base = make_decoder(decoder_config(), "cuda", torch.bfloat16)
    stack = make_stack(base, task, cells, rollouts)
    stacked = timed(replayed(stack), repeats=repeats)
    sampling = timed(graphed(stack.generator.run), repeats=repeats)
    del stack
    runs, streams = [], [torch.cuda.Stream() for _ in range(cells)]
    for stream in streams:
        decoder = copy.deepcopy(base)
        compile_decoder(decoder)
        with torch.cuda.stream(stream):
            runs.append(replayed(make_step(decoder, base, task, rollouts)))
            runs[-1]()
    alone = timed(runs[0], repeats=repeats)

    def side_by_side() -> None:
        main = torch.cuda.current_stream()
        for run, stream in zip(runs, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                run()
        for stream in streams:
            main.wait_stream(stream)

    beside = timed(side_by_side, repeats=repeats)
    return {
        "cells": cells,
        "rollouts": rollouts,
        "stacked_ms": stacked * 1e3,
        "stacked_sampling_ms": sampling * 1e3,
        "streams_ms": beside * 1e3,
        "alone_ms": alone * 1e3,
        "speedup": cells * alone / stacked,
        "speedup_of_streams": cells * alone / beside,
    }


class _Undisturbed:
    """A study's control that never stops a cell."""

    def stopping(self) -> bool:
        return False

    def advanced(self, _: int) -> None:
        return None


def learning(seed: int, *, fast: bool) -> dict[str, Any]:
    """The built-in base on chain:easy, 32 problems × 16 rollouts × 100 updates."""
    cell = Cell(
        name="bench",
        problems_per_batch=32,
        rollouts_per_problem=16,
        update_steps=100,
        seed=seed,
        problems={"source": "chain:easy"},
        recipe={"name": "isocompute-easy"},
        evaluation={"points": 5, "samples": 16},
        engine={"device": "cuda", "fast": fast},
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = LmEngine()
        engine.check(cell)
        engine.run(cell, Path(folder) / "run", _Undisturbed())
        points = [json.loads(line) for line in (Path(folder) / "run" / "points.jsonl").read_text().splitlines()]
    last = points[-1]
    return {
        "seed": seed,
        "fast": fast,
        "avg@4": [point["avg@4"] for point in points],
        "error": last["avg@4/error"],
        "logprob_gap": last["logprob_gap"],
        "rollouts": last["rollouts"],
        "seconds": last["seconds"],
    }


def parts_of(arguments: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Every measurement by the name of its result, the part before the first slash."""
    repeats, small = arguments.repeats, decoder_config()
    out: dict[str, Callable[[], Any]] = {
        "parity/bf16": lambda: random_parity(torch.bfloat16),
        "parity/fp32": lambda: random_parity(torch.float32),
        "parity/base-bf16": lambda: base_parity(torch.bfloat16),
    }
    for rollouts in arguments.batches:
        out[f"step/{rollouts}"] = lambda rollouts=rollouts: measure_step(small, rollouts, repeats=repeats)
    out["large/ours"] = lambda: measure_large(repeats=10)
    chains = distinct_chains(parse_chain(f"chain:6?modulus={MODULUS}"), 4096, seed=0)
    trl: dict[str, Any] = {
        "questions": [chains.question(i) for i in range(len(chains))],
        "modulus": MODULUS,
        "per_prompt": PER_PROMPT,
        "steps": arguments.trl_steps,
    }
    for rollouts in arguments.batches:
        out[f"trl/{rollouts}"] = lambda rollouts=rollouts: measure_trl(
            make_decoder(small, "cpu", torch.float32), rollouts=rollouts, new=NEW, **trl
        )
    out["trl-large/trl"] = lambda: measure_trl(
        make_decoder(large_config(), "cpu", torch.float32),
        rollouts=LARGE_ROLLOUTS,
        new=LARGE_NEW,
        at_once=TRL_LARGE_AT_ONCE,
        **trl,
    )
    out["stack/16x256"] = lambda: measure_stack(16, 256, repeats=repeats)
    for seed in range(3):
        for fast in (True, False):
            name = f"learning/{'fast' if fast else 'plain'}-{seed}"
            out[name] = lambda seed=seed, fast=fast: learning(seed, fast=fast)
    wider = decoder_config(hidden_size=384, intermediate_size=1024, head_dim=96)
    grown = {
        "16-tokens": (small, 1024, 16),
        "128-tokens": (small, 1024, 128),
        "width-384": (wider, 1024, NEW),
        "4096-rollouts": (small, 4096, NEW),
    }
    for name, (config, rollouts, new) in grown.items():
        out[f"growth/{name}"] = lambda config=config, rollouts=rollouts, new=new: measure_step(
            config, rollouts, new=new, repeats=repeats
        )
    return {name: run for name, run in out.items() if name.split("/")[0] in arguments.parts}


PACKAGES = ("torch", "triton", "transformers", "trl")
"""TRL is needed by its own parts alone."""
PARTS = ["parity", "step", "large", "trl", "trl-large", "stack", "learning", "growth"]


def main() -> int:
    """Run the parts and write what came out; a part that fails is named, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 1024, 8192])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--trl-steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    result: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "machine": torch.cuda.get_device_name(),
        "versions": {name: version(name) for name in PACKAGES if find_spec(name)},
        "copy_bytes_per_s": bandwidth(),
        "sampling_bytes": {str(b): sampling_bytes(decoder_config(), b, NEW) for b in arguments.batches},
        "failed": {},
    }
    for name, run in parts_of(arguments).items():
        started = time.perf_counter()
        try:
            result[name] = run()
            print(f"{time.perf_counter() - started:6.1f} s  {name} {json.dumps(result[name])}", flush=True)
        except Exception as error:
            traceback.print_exc()
            result["failed"][name] = f"{type(error).__name__}: {error}"
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        if arguments.out:
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
