"""Every exported key is one that the trainer's own sources have (lists taken from the commits named in them)."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from isocompute.trainers import (
    TRAINERS,
    RunPlan,
    TrainingHardware,
    explain_text,
    export_plan,
    make_plan,
    nemo_rl,
    openrlhf,
    prime_rl,
    skyrl,
)
from isocompute.trainers.reading import unknown_keys
from tests.trainers.plans import cases

FREE = ("orchestrator.train.source.env.", "orchestrator.eval.source.env.")
"""What an environment takes is the environment's own."""


def leaves(tree: Any, prefix: str = "") -> Iterable[str]:
    """Dotted keys of a nested table; entries of a list count under the list's key."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict) and "name" in tree[0] and "env" in tree[0]:
        for entry in tree:
            yield from leaves(entry, prefix)
    else:
        yield prefix


def words(script: str) -> list[str]:
    return [word for word in shlex.split(script, comments=True) if word.strip()]


def keys_of(trainer: str, text: str) -> set[str]:
    if trainer == "prime-rl":
        return set(leaves(tomllib.loads(text)))
    if trainer == "nemo-rl":
        return set(leaves(yaml.safe_load(text)))
    if trainer == "skyrl":
        return {word.partition("=")[0] for word in words(text) if "=" in word}
    return {word[2:] for word in words(text) if word.startswith("--")}


@pytest.mark.parametrize("trainer", ["openrlhf", "prime-rl", "nemo-rl", "skyrl"])
@settings(max_examples=20)
@given(case=cases())
def test_keys_exist(trainer: str, case: tuple[RunPlan, TrainingHardware]) -> None:
    plan, hardware = case
    text = export_plan(trainer=trainer, plan=plan, hardware=hardware).files[0].text
    used = keys_of(trainer, text)
    assert not {key for key in unknown_keys(trainer, used, alone=True) if not key.startswith(FREE)}
    assert len(used) > 20


@pytest.mark.parametrize("module", [openrlhf, prime_rl, nemo_rl, skyrl])
def test_lists_name_the_commit_that_the_files_do(module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    first = (files("isocompute.trainers") / "keys" / f"{name}.txt").read_text().splitlines()[0]
    assert module.COMMIT in first and module.VERSION in first


TYPOS = {
    "verl": (
        "python -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=8 trainer.loger=x "
        "actor_rollout_ref.actor.ppo_minibatch_size=64 +reward_model.my_own=3 actor_rollout_ref.rollout.foo=1 "
        "++data.max_prompt_lenght=5",
        {
            "data.max_prompt_lenght": "data.max_prompt_length",
            "trainer.loger": "trainer.logger",
            "actor_rollout_ref.actor.ppo_minibatch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
            "actor_rollout_ref.rollout.foo": None,
        },
    ),
    "torchrun": (
        "torchrun --nnodes 2 --rdzv_backend c10d -m verl.trainer.main_ppo --config-name=mine data.train_batch_size=64",
        {},
    ),
    "trl": (
        "from trl import GRPOConfig\nargs = GRPOConfig(num_generation=8, max_completion_length=9, mine=1)",
        {"num_generation": "num_generations", "mine": None},
    ),
    "accelerate": (
        "accelerate launch --num_processes 8 --mixed_precision bf16 train.py --num_generations 8 --my_flag 3 "
        "--max_completion_lenght 99",
        {"max_completion_lenght": "max_completion_length"},
    ),
    "openrlhf": (
        "ray job submit --address=x --runtime-env-json='{}' -- python3 -m openrlhf.cli.train_ppo_ray "
        "--rollout.batch_size 64 --rollout.n_sample_per_prompt 8 --actor.adam.lr 1e-6 --train_batch_size 64",
        {"rollout.n_sample_per_prompt": "rollout.n_samples_per_prompt"},
    ),
    "prime-rl": (
        "max_steps = 100\n[orchestrator]\nbatch_size = 512\ngroup_szie = 8\n[trainer.optim]\nlr = 1e-6\nbeta_1 = 0.9\n",
        {"orchestrator.group_szie": "orchestrator.group_size", "trainer.optim.beta_1": "trainer.optim.betas1"},
    ),
    "nemo-rl": (
        "grpo:\n  num_prompt_per_step: 32\n  num_generations_per_prompt: 8\n"
        "policy:\n  optimizer:\n    kwargs: {amsgrad: true}\n  generation: {temperature: 1.0}\n",
        {"grpo.num_prompt_per_step": "grpo.num_prompts_per_step"},
    ),
    "skyrl": (
        "python -m skyrl.train.entrypoints.main_base trainer.train_batch_size=64 generator.n_samples_per_promt=8 "
        "trainer.policy.optimizer_config.lr=1e-6",
        {"generator.n_samples_per_promt": "generator.n_samples_per_prompt"},
    ),
}
"""Configs as people write them, arguments of launchers among them, and what is no key of their trainer's."""


@pytest.mark.parametrize("name", TYPOS)
def test_a_misspelt_key_is_named(name: str) -> None:
    text, unknown = TYPOS[name]
    found = explain_text(text)
    assert found.unknown == unknown
    for key, meant in unknown.items():
        assert key + ("" if meant is None else f" (meant: {meant}?)") in found.text
    assert ("Not a key" in found.text) + ("Not keys" in found.text) == bool(unknown)


@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=10)
@given(case=cases())
def test_no_export_has_an_unknown_key(trainer: str, case: tuple[RunPlan, TrainingHardware]) -> None:
    plan, hardware = case
    for file in export_plan(trainer=trainer, plan=plan, hardware=hardware).files:
        assert explain_text(file.text).unknown == {}


def test_enumerated_values() -> None:
    """Choices that OpenRLHF's argument parser checks."""
    estimators = {"gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"}
    assert set(openrlhf.ADVANTAGES.values()) <= estimators
    losses = {"regular", "dual_clip", "gspo", "cispo", "clip_cov", "kl_cov", "sapo", "rollout_is", "dppo"}
    assert set(skyrl.LOSSES.values()) <= losses
    reductions = {"token_mean", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean"}
    assert set(skyrl.AGGREGATIONS.values()) == reductions
    assert {name for name, *_ in nemo_rl.ADVANTAGES.values()} <= {"grpo", "gdpo", "reinforce_plus_plus"}


def test_nemo_rls_own_rules_hold() -> None:
    """Its loss asserts these combinations when it is built."""
    for loss in ("clip", "gspo", "cispo", "reinforce"):
        for aggregation in ("token", "sequence", "prompt", "fixed"):
            plan = make_plan({"Bp": 8, "n": 8, "M": 5, "recipe": {"loss": loss, "aggregation": aggregation}})
            table = yaml.safe_load(export_plan(trainer="nemo-rl", plan=plan).files[0].text)["loss_fn"]
            if table["sequence_level_importance_ratios"]:
                assert not table["token_level_loss"]
            if table["use_cispo"]:
                assert table["token_level_loss"] and not table["disable_ppo_ratio"]
            if table["truncated_importance_sampling_type"] is not None:
                assert table["use_importance_sampling_correction"]
                assert table["truncated_importance_sampling_ratio"] > 0
