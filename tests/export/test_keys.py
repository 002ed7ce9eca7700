"""Every exported key is one that the trainer's own sources have (lists taken from the commits named in them)."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from isocompute.export import Hardware, Plan, export_plan, make_plan, nemo_rl, openrlhf, prime_rl, skyrl
from tests.export.plans import cases

KEYS = Path(__file__).parent / "keys"
FREE = ("orchestrator.train.source.env.", "orchestrator.eval.source.env.")
"""What an environment takes is the environment's own."""


def known(name: str) -> set[str]:
    lines = (KEYS / f"{name}.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


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
def test_keys_exist(trainer: str, case: tuple[Plan, Hardware]) -> None:
    plan, hardware = case
    text = export_plan(trainer=trainer, plan=plan, hardware=hardware).files[0].text
    used = keys_of(trainer, text)
    unknown = used - known(trainer.replace("-", "_"))
    assert not {key for key in unknown if not key.startswith(FREE)}
    assert len(used) > 20


@pytest.mark.parametrize("module", [openrlhf, prime_rl, nemo_rl, skyrl])
def test_lists_name_the_commit_that_the_files_do(module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    first = (KEYS / f"{name}.txt").read_text().splitlines()[0]
    assert module.COMMIT in first and module.VERSION in first


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
