"""Exported overrides against veRL 0.9.1's own `ppo_trainer` schema, composed by Hydra, which refuses unknown keys.

veRL itself is never imported: its config folder is read from where `make` installs it, apart from this environment.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from hypothesis import given, settings
from omegaconf import DictConfig, OmegaConf

from isocompute.trainers import RunPlan, TrainingHardware, export_plan, make_plan
from isocompute.trainers import verl as trainer
from isocompute.trainers.reading import unknown_keys
from tests.trainers.plans import cases

CONFIGS = Path(sys.prefix) / "verl" / "verl" / "trainer" / "config"
LOSS_MODES = {"vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro"}
LOSS_MODES |= {"bypass_mode"}
LOSS_AGG_MODES = {
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
}
ESTIMATORS = {"gae", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "opo", "gpg"}


@pytest.fixture(scope="module", autouse=True)
def schema() -> Iterator[None]:
    assert CONFIGS.is_dir(), "veRL's configs are missing: run make, or the command in CONTRIBUTING.md"
    with initialize_config_dir(config_dir=str(CONFIGS), version_base=None):
        yield


def composed(overrides: Sequence[str]) -> DictConfig:
    return compose("ppo_trainer", overrides=list(overrides))


def overrides_of(script: str) -> list[str]:
    """The arguments that bash passes on when it runs the script."""
    shown = 'python3() { printf "%s\\0" "$@"; }; source /dev/stdin'
    done = subprocess.run(["bash", "-c", shown], input=script.encode(), capture_output=True, check=True)
    dash_m, module, *arguments = done.stdout.decode().rstrip("\0").split("\0")
    assert (dash_m, module) == ("-m", "verl.trainer.main_ppo")
    return arguments


@settings(max_examples=5)
@given(case=cases())
def test_every_export_composes(case: tuple[RunPlan, TrainingHardware]) -> None:
    plan, hardware = case
    script, overrides = export_plan(trainer="verl", plan=plan, hardware=hardware).files
    arguments = overrides_of(script.text)
    assert arguments == [shlex.split(line)[0] for line in overrides.text.splitlines() if not line.startswith("#")]
    config = composed(arguments)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.data.train_batch_size == actor.ppo_mini_batch_size == plan.problems_per_batch
    assert rollout.n == plan.rollouts_per_problem
    assert config.trainer.total_training_steps == plan.update_steps
    assert actor.optim.lr == pytest.approx(plan.learning_rate, rel=1e-12)
    assert actor.policy_loss.loss_mode in LOSS_MODES
    assert actor.loss_agg_mode in LOSS_AGG_MODES
    assert config.algorithm.adv_estimator in ESTIMATORS
    assert config.actor_rollout_ref.model.path == (plan.model or "path/to/model")
    assert config.data.train_files == (plan.train_file or "path/to/train.parquet")
    assert rollout.temperature == rollout.val_kwargs.temperature == plan.recipe.temperature
    if config.algorithm.rollout_correction.rollout_is is not None:
        assert rollout.calculate_log_probs
    # What veRL's validate_config and its workers ask for, in its own words.
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    assert gpus == hardware.gpus
    rollouts = config.data.train_batch_size * rollout.n
    assert rollouts % gpus == 0
    if not actor.use_dynamic_bsz:
        assert rollouts // gpus % actor.ppo_micro_batch_size_per_gpu == 0
        assert config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu is not None


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ConfigCompositionException):
        composed(["actor_rollout_ref.actor.no_such_key=1"])


def test_the_readers_defaults_are_verls() -> None:
    config = composed([])
    values: dict[str, Any] = {key: OmegaConf.select(config, key) for key in trainer.KEYS.defaults}
    plain = {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in values.items()}
    assert plain == trainer.KEYS.defaults


def test_names_are_the_published_ones() -> None:
    assert set(trainer.LOSSES.values()) <= LOSS_MODES == trainer.LOSS_MODES
    assert set(trainer.AGGREGATIONS.values()) <= LOSS_AGG_MODES


@pytest.mark.parametrize(("cap", "high"), [(5.0, 4.0), (2.0, 1.0)])
def test_a_cispo_cap_is_one_less_here(cap: float, high: float) -> None:
    recipe = {"name": "cispo", "ratio_cap": cap}
    plan = make_plan({"Bp": 8, "n": 8, "M": 10, "recipe": recipe})
    actor = composed(overrides_of(export_plan(trainer="verl", plan=plan).files[0].text)).actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (1.0, high)


def test_the_list_of_keys_is_the_schemas() -> None:
    """`explain` calls a key unknown that is in neither trainer config; tables of free content end the list."""
    composed_keys: set[str] = set()
    for name in ("ppo_trainer", "ppo_megatron_trainer"):
        composed_keys |= set(all_keys(compose(name)))
    assert unknown_keys("verl", composed_keys, alone=True) == {}
    made_up = sorted(f"{key}_x" for key in composed_keys if "." in key)
    free = ("kwargs.", "config.", "env_vars.")
    missed = set(made_up) - unknown_keys("verl", made_up, alone=True).keys()
    assert {key for key in missed if not any(part in key for part in free)} == set()


def all_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for name in node:
        yield f"{prefix}{name}"
        below = node._get_node(name)
        if isinstance(below, DictConfig) and not below._is_none():
            yield from all_keys(below, f"{prefix}{name}.")
