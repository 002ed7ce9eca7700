"""One update of the engine against one update of TRL's own GRPOTrainer: same weights, completions and rewards.

TRL runs whole: its trainer, its loss, its AdamW. Only the completions (through its `rollout_func`) and the rewards are
given. Where the two define a quantity differently the test either feeds inputs on which the definitions meet, or
measures the difference that docs/explanation/losses.md states.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from isocompute.core.recipe import make_recipe
from isocompute.rl.model.checkpoint import load_decoder
from isocompute.rl.rollout.engine import Rollouts
from isocompute.rl.setup import Sizes
from isocompute.rl.update import Optimizer, make_batch, score_all, update
from tests.rl.models import gradients_of, reference, weights_of

PROMPTS = [[5, 9, 2], [7, 17, 33, 80, 4, 6, 21], [50, 51]]
EOS, PAD, N, NEW = 1, 0, 4, 9
LENGTHS = [3, 9, 5, 9, 1, 7, 9, 2, 8, 4, 6, 9]
"""Of the responses; those of 9 tokens are cut off, the others end with EOS."""
LARGE = [[1e4, 0.0, 0.0, 1e4], [2e4, 1e4, 0.0, 0.0], [0.0, 0.0, 1e4, 5e3]]
"""So large that neither trainer's constant beside the standard deviation (1e-4 there, 1e-6 here) is felt."""
BINARY = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
"""The second problem has no variance."""
RATE, UPDATES = 2e-3, 3

SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # TRL's settings, and the recipe's
    "grpo": (
        {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2},
        {"name": "grpo", "kl_coef": 0.0},
    ),
    "grpo with KL": (
        {"loss_type": "grpo", "beta": 0.3, "temperature": 0.6, "use_bias_correction_kl": False},
        {"name": "grpo", "kl_coef": 0.3, "temperature": 0.6},
    ),
    "dapo": (
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
        {"name": "dapo"},
    ),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {"name": "gspo"},
    ),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.1},
        {
            "name": "cispo",
            "ratio_cap": 1.1,
            "ratio_reference": "trainer",
            "aggregation": "token",
            "advantage": "group_std",
        },
    ),
    "dr-grpo": (
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        {"name": "dr-grpo"},
    ),
    "truncated responses left out": (
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "mask_truncated_completions": True},
        {"name": "dapo", "mask_truncated": True},
    ),
    "entropy bonus": (
        {"loss_type": "dapo", "entropy_coef": 0.1},
        {"name": "dapo", "clip_high": 0.2, "entropy_coef": 0.1},
    ),
}


@pytest.fixture(scope="module")
def trl() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("trl")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Warnings of the libraries beneath are not ours to turn into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with a tokenizer whose words are numbers."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    out = tmp_path_factory.mktemp("qwen3")
    model = reference("qwen3")
    with torch.no_grad():
        model.lm_head.weight *= 4.0  # a policy with opinions: the entropy of random weights is that of noise
    model.save_pretrained(out)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(97)}, unk_token="2"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="0").save_pretrained(out)
    return out


def completions() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, 97, (n,), generator=generator).tolist() for n in LENGTHS]
    return [row if len(row) == NEW else [*row[:-1], EOS] for row in rows]


@dataclass(frozen=True)
class Outcome:
    """What a trainer did: clipped gradients, norms before clipping, and weights, before every step and at the end."""

    gradients: list[dict[str, Tensor]]
    norms: list[float]
    weights: list[dict[str, Tensor]]


def theirs(
    trl: ModuleType,
    folder: Path,
    scratch: Path,
    rewards: list[list[float]],
    *,
    sampled: list[list[float]] | None = None,
    updates: int = 1,
    accumulate: int = 1,
    **options: Any,
) -> Outcome:
    """TRL's trainer for `updates` optimiser steps on one batch."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    rows = completions()
    gradients: list[dict[str, Tensor]] = []
    weights: list[dict[str, Tensor]] = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
            gradients.append({name: p.grad.clone() for name, p in named(model) if p.grad is not None})
            weights.append({name: p.detach().clone() for name, p in named(model)})

    def rollout(prompts: list[str], _: Any) -> dict[str, Any]:
        assert prompts == [str(i) for i in range(len(PROMPTS)) for _ in range(N)]
        logprobs = [[0.0] * len(row) for row in rows] if sampled is None else sampled
        return {"prompt_ids": [PROMPTS[int(p)] for p in prompts], "completion_ids": rows, "logprobs": logprobs}

    def reward(completions: list[str], **_: Any) -> list[float]:
        assert len(completions) == len(rows)
        return [value for group in rewards for value in group]

    count = len(rows)
    truncated = options.pop("tis_cap", None)
    trainer = trl.GRPOTrainer(
        model=str(folder),
        reward_funcs=reward,
        args=trl.GRPOConfig(
            output_dir=str(scratch),
            per_device_train_batch_size=count // accumulate,
            gradient_accumulation_steps=accumulate,
            steps_per_generation=accumulate,
            num_iterations=updates,
            max_steps=updates,
            num_generations=N,
            max_completion_length=NEW,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            bf16=False,
            use_cpu=True,
            model_init_kwargs={"dtype": "float32"},
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **options,
        ),
        train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(len(PROMPTS))]}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[Watch()],
        rollout_func=rollout,
    )
    if truncated is not None:  # TRL corrects the sampler only with vLLM: give it the sampler's log-probs without one
        trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, True
        trainer.vllm_importance_sampling_mode = "token_truncate"
        trainer.vllm_importance_sampling_clip_max = truncated
        trainer.vllm_importance_sampling_clip_min = None
        trainer.vllm_generation, trainer._last_loaded_step = SimpleNamespace(sync_weights=lambda: None), 0
    trainer.train()
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    return Outcome(gradients, norms, [*weights, {name: p.detach().clone() for name, p in named(trainer.model)}])


def named(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters by the names that this engine uses: without the leading `model.`."""
    return ((name.removeprefix("model."), parameter) for name, parameter in model.named_parameters())


def batch_of(sampled: list[list[float]] | None) -> Rollouts:
    """The completions as the engine holds them."""
    lengths_B, prompt_B = torch.tensor(LENGTHS), torch.arange(len(LENGTHS)) // N
    responses_BT = torch.tensor([row + [PAD] * (NEW - len(row)) for row in completions()])
    rollouts = Rollouts(PROMPTS, prompt_B, responses_BT, torch.zeros(responses_BT.shape), lengths_B, lengths_B < NEW)
    if sampled is not None:
        rollouts.logprobs_BT[rollouts.mask_BT] = torch.tensor([value for row in sampled for value in row])
    return rollouts


def ours(
    folder: Path,
    rewards: list[list[float]],
    recipe_table: dict[str, Any],
    *,
    sampled: list[list[float]] | None = None,
    updates: int = 1,
    micro_batch: int = 5,
) -> Outcome:
    """The engine on the same batch."""
    recipe = make_recipe({**recipe_table, "updates_per_batch": updates})
    decoder = load_decoder(folder)
    rollouts = batch_of(sampled)
    batch = make_batch(recipe, rollouts, torch.tensor(rewards), max_new_tokens=NEW, device=torch.device("cpu"))
    if recipe.kl_coef:
        base = load_decoder(folder)
        batch = replace(batch, base_logprobs_BT=score_all(base, rollouts, recipe, sizes=at_once(4)))
    gradients: list[dict[str, Tensor]] = []
    weights: list[dict[str, Tensor]] = []
    norms: list[float] = []

    def watch(*_: Any) -> None:
        gradients.append(gradients_of(decoder))
        weights.append(weights_of(decoder))

    class Watched(Optimizer):
        def step(self) -> Tensor:
            norm = super().step()
            norms.append(float(norm))
            return norm

    optimizer = Watched(list(decoder.parts()), recipe)
    optimizer.inner.register_step_pre_hook(watch)
    update(decoder, optimizer, batch, recipe, rate=RATE, sizes=at_once(micro_batch))
    return Outcome(gradients, norms, [*weights, weights_of(decoder)])


def at_once(rows: int) -> Sizes:
    """At most so many rollouts in a pass."""
    return Sizes(tokens=4096, rows=12, most_rows=rows)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Norm of the difference over all tensors, over that of `b`."""
    assert set(a) == set(b)
    apart = sum(float((a[name] - b[name]).double().pow(2).sum()) for name in b)
    return (apart / sum(float(b[name].double().pow(2).sum()) for name in b)) ** 0.5


def moved(outcome: Outcome, step: int) -> dict[str, Tensor]:
    """How far the weights are from the start."""
    return {name: value - outcome.weights[0][name] for name, value in outcome.weights[step].items()}


def assert_same(got: Outcome, wanted: Outcome) -> None:
    """Gradients and norms (AdamW's first step forgets the scale of a gradient), and the way the weights went.

    AdamW makes steps of one size out of gradients near nothing too, whose last digits differ: hence the wider margin.
    """
    assert distance(got.weights[0], wanted.weights[0]) == 0.0
    assert got.norms == pytest.approx(wanted.norms, rel=1e-5)
    for step, (mine, yours) in enumerate(zip(got.gradients, wanted.gradients, strict=True)):
        assert distance(mine, yours) < 1e-5
        assert distance(moved(got, step + 1), moved(wanted, step + 1)) < 1e-4


@pytest.mark.parametrize("name", SAME)
def test_updates_equal(name: str, trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """Three updates on one batch: at the first the ratio is 1, later the clips and caps bite."""
    options, table = SAME[name]
    wanted = theirs(trl, folder, tmp_path, LARGE, updates=UPDATES, **options)
    got = ours(folder, LARGE, table, updates=UPDATES)
    assert_same(got, wanted)


def test_truncated_importance_sampling_equal(trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """A sampler whose log-probs are off by up to a factor of e either way; the cap cuts some."""
    generator = torch.Generator().manual_seed(5)
    decoder = load_decoder(folder)
    exact = score_all(decoder, batch_of(None), make_recipe({}), sizes=at_once(12))
    noisy = exact + 2 * torch.rand(exact.shape, generator=generator) - 1
    sampled = [noisy[row, :length].tolist() for row, length in enumerate(LENGTHS)]
    wanted = theirs(trl, folder, tmp_path, LARGE, sampled=sampled, updates=2, loss_type="dapo", tis_cap=1.5)
    table = {"name": "isocompute-hard", "temperature": 1.0, "tis_cap": 1.5}
    got = ours(folder, LARGE, table, sampled=sampled, updates=2)
    assert_same(got, wanted)
    assert got.norms != pytest.approx(ours(folder, LARGE, {**table, "tis_cap": None}).norms, rel=1e-2)


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_accumulation_equal(name: str, trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """TRL in two accumulation steps, the engine in micro-batches of one."""
    options, table = SAME[name]
    wanted = theirs(trl, folder, tmp_path, LARGE, accumulate=2, **options)
    assert_same(ours(folder, LARGE, table, micro_batch=1), wanted)


# Where the definitions part (docs/explanation/losses.md)


def test_constant_beside_the_standard_deviation(trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """1e-4 in TRL, 1e-6 here: on rewards of 0 and 1 a group's advantages differ by 1e-4 / std, some 2e-4."""
    options, table = SAME["grpo"]
    wanted, got = theirs(trl, folder, tmp_path, BINARY, **options), ours(folder, BINARY, table)
    ratio = got.norms[0] / wanted.norms[0]
    assert 1 + 1e-4 / 0.58 < ratio < 1 + 1e-4 / 0.49  # the groups' standard deviations are .577 and .5
    assert distance(got.gradients[0], wanted.gradients[0]) < 3e-4


def test_problems_without_variance_in_dapo(trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """The recipe leaves their tokens out of the mean, as DAPO's dynamic sampling does; TRL counts them as zeros."""
    options, table = SAME["dapo"]
    wanted, got = theirs(trl, folder, tmp_path, BINARY, **options), ours(folder, BINARY, table)
    tokens_P = torch.tensor(LENGTHS).view(3, N).sum(dim=1)
    kept = float(tokens_P[0] + tokens_P[2]) / float(tokens_P.sum())
    assert got.norms[0] * kept == pytest.approx(wanted.norms[0], rel=3e-4)
    off = ours(folder, BINARY, {**table, "zero_variance_filter": "off"})
    assert off.norms[0] == pytest.approx(wanted.norms[0], rel=3e-4)


def test_standard_deviation_over_the_batch(trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """TRL divides by the std of rewards, n - 1; ScaleRL and this engine by the root mean square of reward - mean."""
    options, table = SAME["cispo"]
    wanted = theirs(trl, folder, tmp_path, LARGE, scale_rewards="batch", **options)
    got = ours(folder, LARGE, {**table, "advantage": "batch_std"})
    rewards_PN = torch.tensor(LARGE)
    centred_PN = rewards_PN - rewards_PN.mean(dim=1, keepdim=True)
    ratio = float(rewards_PN.std() / centred_PN.pow(2).mean().sqrt())
    assert ratio > 1.05
    assert got.norms[0] == pytest.approx(ratio * wanted.norms[0], rel=1e-4)


def test_gradient_of_the_kl_term(trl: ModuleType, folder: Path, tmp_path: Path) -> None:
    """TRL's default multiplies k3 by the ratio (DeepSeek-V3.2); DeepSeekMath's eq. 4 and this engine do not.

    At the first update the policy is the base and k3 is zero with a zero gradient either way; at the second they part.
    """
    options, table = SAME["grpo with KL"]
    wanted = theirs(trl, folder, tmp_path, LARGE, updates=2, **{**options, "use_bias_correction_kl": True})
    got = ours(folder, LARGE, table, updates=2)
    first, second = (distance(a, b) for a, b in zip(got.gradients, wanted.gradients, strict=True))
    assert first < 1e-4
    assert second > 1e-2
