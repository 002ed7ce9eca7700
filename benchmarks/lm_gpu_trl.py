"""TRL's GRPOTrainer on a decoder, prompts and lengths of `lm_gpu.py`: seconds from one step's end to the next."""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from isocompute.rl.model.checkpoint import save_decoder
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.pretrain import write_chain_tokenizer

__all__ = ["measure_trl"]


def measure_trl(
    decoder: Decoder,
    questions: list[str],
    *,
    modulus: int,
    rollouts: int,
    per_prompt: int,
    new: int,
    steps: int,
    at_once: int | None = None,
) -> dict[str, Any]:
    """Median over `steps` steps after a first one. `at_once` rollouts in a pass; by default all of them."""
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    context = decoder.config.max_position_embeddings
    at_once = at_once or rollouts
    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        tokenizers = Path(folder) / "tokenizer"
        tokenizers.mkdir()
        write_chain_tokenizer(tokenizers, modulus=modulus, context=context)
        save_decoder(decoder.float().cpu(), Path(folder) / "model", tokenizer_from=tokenizers)
        model = transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.bfloat16)
        tokenizer = transformers.AutoTokenizer.from_pretrained(Path(folder) / "model", padding_side="left")
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [float(len(c) % 2) for c in completions],
            train_dataset=Dataset.from_dict({"prompt": questions}),
            args=GRPOConfig(
                output_dir=f"{folder}/out",
                per_device_train_batch_size=at_once,
                gradient_accumulation_steps=rollouts // at_once,
                num_generations=per_prompt,
                max_completion_length=new,
                generation_kwargs={"min_new_tokens": new},
                max_steps=steps + 1,
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
    del trainer, model
    gc.collect()
    torch.cuda.empty_cache()
    seconds = statistics.median(b - a for a, b in itertools.pairwise(ends))
    return {
        "rollouts": rollouts,
        "at_once": at_once,
        "new_tokens": new,
        "steps": len(ends) - 1,
        "step_ms": seconds * 1e3,
        "tokens_per_s": rollouts * new / seconds,
        "rollouts_per_s": rollouts / seconds,
    }
