"""Speed of the language-model engine on one GPU, beside TRL's GRPOTrainer on the same model, prompts and lengths.

    python benchmarks/lm_gpu.py --out results/lm_gpu.json                # everything
    python benchmarks/lm_gpu.py --parts step --batches 256 1024          # some of it

The model is a 1.8M-parameter Qwen3-style decoder (4 layers, width 192, 4 heads, feed-forward 512) on 14-token chain
prompts; 64 new tokens are forced on both sides, so tokens a second compare like with like. GRPO, one update a batch,
bf16. Times are medians over steps after warm-up, the device synchronised.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from isocompute.engines.lm.config import DecoderConfig
from isocompute.engines.lm.decoder import Decoder
from isocompute.engines.lm.fast.step import Step, capture, compile_decoder
from isocompute.engines.lm.optimizer import Optimizer
from isocompute.engines.lm.sampler import SamplingSettings, sample
from isocompute.engines.lm.scoring import score
from isocompute.engines.lm.tasks import ChainVerifier, Task
from isocompute.engines.lm.vocabulary import write_chain_tokenizer
from isocompute.problems.chain import distinct_chains, parse_chain, vocabulary
from isocompute.recipes import make_recipe

MODULUS, NEW, PER_PROMPT = 97, 64, 8
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


def make_step(decoder: Decoder, base: Decoder, task: Task, rollouts: int, *, micro_batch: int = 1 << 30) -> Step:
    """A step of so many rollouts."""
    parameters = list(decoder.parameters())
    return Step(
        decoder,
        base,
        Optimizer(parameters, RECIPE),
        task,
        RECIPE,
        problems=rollouts // PER_PROMPT,
        per_prompt=PER_PROMPT,
        max_new_tokens=NEW,
        stop_tokens=(),
        micro_batch=micro_batch,
    )


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


def kv_bytes(config: DecoderConfig, rollouts: int, prompt: int, new: int) -> float:
    """Bytes of keys and values that sampling reads: all of a row's, once a token."""
    slot = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    own = sum(range(new)) * slot * rollouts
    return own + new * prompt * slot * rollouts


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    a = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / timed(lambda: b.copy_(a), repeats=10)


def parity(device: str, dtype: torch.dtype) -> dict[str, float]:
    """Fast against plain: the kernel's log-probs, and those of one pass over the whole sequence."""
    decoder, task = make_decoder(decoder_config(), device, dtype), make_task(64, device)
    step = make_step(decoder, decoder, task, 64)
    step.index_P.copy_(torch.arange(8))
    step.table.fill(step.generator, step.index_P)
    step.generator.seed.fill_(3)
    got = step.generator.run()
    with torch.no_grad():
        again, _ = score(decoder, got, fixed=True)
    plain = sample(
        decoder,
        [task.prompts[i] for i in range(8)],
        SamplingSettings(NEW, temperature=RECIPE.temperature),
        seed=3,
        per_prompt=PER_PROMPT,
    )
    same = (plain.responses_BT == got.responses_BT).float().mean()
    gap = (again - got.logprobs_BT).abs()
    return {"mean_gap": float(gap.mean()), "largest_gap": float(gap.max()), "same_tokens": float(same)}


def measure_step(rollouts: int, *, compiled: bool, repeats: int) -> dict[str, Any]:
    """Sampling alone, the whole step, and what is left for training."""
    task = make_task(max(2048, rollouts // PER_PROMPT), "cuda")
    decoder = make_decoder(decoder_config(), "cuda", torch.bfloat16)
    base = copy.deepcopy(decoder)
    if compiled:
        compile_decoder(decoder)
    step = make_step(decoder, base, task, rollouts)
    step.index_P.copy_(torch.arange(rollouts // PER_PROMPT))
    started = time.perf_counter()
    graph = capture([step])
    ready = time.perf_counter() - started
    whole = timed(graph.replay, repeats=repeats)
    sampling = timed(graphed(step.generator.run), repeats=repeats)
    return {
        "rollouts": rollouts,
        "compiled": compiled,
        "capture_s": ready,
        "step_ms": whole * 1e3,
        "sampling_ms": sampling * 1e3,
        "tokens_per_s": rollouts * NEW / whole,
        "rollouts_per_s": rollouts / whole,
        "kv_bytes": kv_bytes(decoder.config, rollouts, 14, NEW),
    }


def measure_stack(cells: int, rollouts: int, *, repeats: int) -> dict[str, Any]:
    """Several cells in one graph against one after another."""
    task = make_task(2048, "cuda")
    base = make_decoder(decoder_config(), "cuda", torch.bfloat16)
    steps = []
    for _ in range(cells):
        decoder = copy.deepcopy(base)
        compile_decoder(decoder)
        steps.append(make_step(decoder, base, task, rollouts))
        steps[-1].index_P.copy_(torch.arange(rollouts // PER_PROMPT))
    together = timed(capture(steps).replay, repeats=repeats)
    alone = timed(capture(steps[:1]).replay, repeats=repeats)
    return {
        "cells": cells,
        "rollouts": rollouts,
        "together_ms": together * 1e3,
        "alone_ms": alone * 1e3,
        "speedup": cells * alone / together,
    }


def measure_trl(rollouts: int, *, steps: int, config: DecoderConfig, new: int = NEW) -> dict[str, Any]:
    """TRL's GRPOTrainer, seconds from one step's end to the next."""
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from isocompute.engines.lm.checkpoint import save_decoder

    chains = distinct_chains(parse_chain(f"chain:6?modulus={MODULUS}"), 4096, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "tokenizer"
        scratch.mkdir()
        write_chain_tokenizer(scratch, modulus=MODULUS, context=config.max_position_embeddings)
        save_decoder(make_decoder(config, "cpu", torch.float32), Path(folder) / "model", tokenizer_from=scratch)
        model = transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.bfloat16)
        tokenizer = transformers.AutoTokenizer.from_pretrained(Path(folder) / "model", padding_side="left")
        ends: list[float] = []

        class Clock(transformers.TrainerCallback):
            def on_step_end(self, *_: object, **__: object) -> None:
                torch.cuda.synchronize()
                ends.append(time.perf_counter())

        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [float(len(c) % 2) for c in completions],
            train_dataset=Dataset.from_dict({"prompt": [chains.question(i) for i in range(len(chains))]}),
            args=GRPOConfig(
                output_dir=f"{folder}/out",
                per_device_train_batch_size=rollouts,
                num_generations=PER_PROMPT,
                max_completion_length=new,
                generation_kwargs={"min_new_tokens": new},
                max_steps=steps,
                learning_rate=1e-6,
                beta=0.0,
                bf16=True,
                gradient_checkpointing=False,
                report_to=[],
                logging_steps=1000,
                save_strategy="no",
                disable_tqdm=True,
            ),
            callbacks=[Clock()],
        )
        trainer.train()
    gaps = [b - a for a, b in itertools.pairwise(ends)]
    seconds = statistics.median(gaps[1:] or gaps)
    return {
        "rollouts": rollouts,
        "new": new,
        "step_ms": seconds * 1e3,
        "tokens_per_s": rollouts * new / seconds,
        "rollouts_per_s": rollouts / seconds,
        "steps": len(gaps),
    }


def main() -> None:
    """Run the parts and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["parity", "step", "stack", "trl"])
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 1024, 8192])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--trl-steps", type=int, default=8)
    parser.add_argument("--plain", action="store_true", help="without compiled blocks")
    parser.add_argument("--flash", action="store_true", help="without the attention of cuDNN")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    if arguments.flash:
        torch.backends.cuda.enable_cudnn_sdp(False)
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}

    def note(key: str, value: Any) -> None:
        result[key] = value
        print(key, json.dumps(value), flush=True)
        if arguments.out:
            Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")

    if "parity" in arguments.parts:
        note("parity_bf16", parity("cuda", torch.bfloat16))
        note("parity_fp32", parity("cuda", torch.float32))
    if "step" in arguments.parts:
        note("copy_bytes_per_s", bandwidth())
        for rollouts in arguments.batches:
            note(f"step_{rollouts}", measure_step(rollouts, compiled=not arguments.plain, repeats=arguments.repeats))
    if "stack" in arguments.parts:
        note("stack_16x256", measure_stack(16, 256, repeats=arguments.repeats))
    if "trl" in arguments.parts:
        for rollouts in arguments.batches:
            note(f"trl_{rollouts}", measure_trl(rollouts, steps=arguments.trl_steps, config=decoder_config()))


if __name__ == "__main__":
    main()
