"""Imported recipes: everything that the trainer's config in the log states, and nothing else."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from isocompute import load
from isocompute.cli.main import app
from isocompute.core.recipe import Recipe
from isocompute.data import RunWarning
from isocompute.data.compatible import conditions_of
from isocompute.data.config import RunConfig, read_run_config
from isocompute.data.importing import import_logs, write_runs
from isocompute.trainers import explain_text

STEPS = "".join(f"step:{s} - critic/score/mean:{0.1 + s / 100:.3f} - actor/entropy:0.5\n" for s in range(1, 9))
VERL_2024 = """\
(main_task pid=1) {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2,
(main_task pid=1)                                  'entropy_coeff': 0.001,
(main_task pid=1)                                  'grad_clip': 1.0,
(main_task pid=1)                                  'optim': {'lr': 1e-06, 'lr_warmup_steps_ratio': 0.0},
(main_task pid=1)                                  'ppo_epochs': 1,
(main_task pid=1)                                  'ppo_mini_batch_size': 64},
(main_task pid=1)                        'rollout': {'temperature': 1.0, 'top_p': 1}},
(main_task pid=1)  'algorithm': {'adv_estimator': 'gae',
(main_task pid=1)                'gamma': 1.0,
(main_task pid=1)                'kl_ctrl': {'kl_coef': 0.001, 'type': 'fixed'},
(main_task pid=1)                'lam': 0.95},
(main_task pid=1)  'critic': {'cliprange_value': 0.5, 'optim': {'lr': 1e-05}},
(main_task pid=1)  'data': {'max_response_length': 512, 'train_batch_size': 256}}
"""
VERL_2025 = """\
{'actor_rollout_ref': {'actor': {'clip_ratio': 0.2,
                                 'clip_ratio_high': 0.28,
                                 'clip_ratio_low': 0.2,
                                 'entropy_coeff': 0,
                                 'kl_loss_coef': 0.001,
                                 'loss_agg_mode': 'seq-mean-token-mean',
                                 'optim': {'betas': [0.9, 0.95],
                                           'lr': 3e-06,
                                           'weight_decay': 0.1},
                                 'policy_loss': {'loss_mode': 'gspo'},
                                 'ppo_mini_batch_size': 32,
                                 'use_kl_loss': False},
                       'rollout': {'n': 8, 'temperature': 0.7}},
 'algorithm': {'adv_estimator': 'grpo',
               'filter_groups': {'enable': True},
               'kl_ctrl': {'kl_coef': 0.001, 'type': 'fixed'},
               'norm_adv_by_std_in_grpo': False,
               'use_kl_in_reward': False},
 'data': {'max_response_length': 4096, 'train_batch_size': 64}}
"""


def kept(path: Path, text: str) -> dict[str, Any]:
    """Recipe and response budget of a log that begins with this text."""
    path.write_text(text + STEPS)
    (item,) = import_logs(path)
    settings = item.run.settings.model_dump(exclude_none=True)
    return {**settings.get("recipe", {}), **settings.get("problem_set", {})}


def test_ppo_of_2024(tmp_path: Path) -> None:
    # 256 problems in mini-batches of 64, once, are 4 updates. There was no switch for the KL in the reward yet.
    assert kept(tmp_path / "ppo.log", VERL_2024) == {
        **{
            "advantage": "gae",
            "gae_discount": 1.0,
            "gae_lambda": 0.95,
            "critic_learning_rate": 1e-5,
            "value_clip": 0.5,
        },
        **{"clip_low": 0.2, "clip_high": 0.2, "temperature": 1.0, "top_p": 1.0, "updates_per_batch": 4},
        **{"kl_coef": 0.001, "entropy_coef": 0.001, "learning_rate": 1e-6, "warmup_steps": 0, "grad_clip": 1.0},
        "max_new_tokens": 512,
    }


def test_a_kl_term_that_is_switched_off_is_zero(tmp_path: Path) -> None:
    assert kept(tmp_path / "gspo.log", VERL_2025) == {
        **{"loss": "gspo", "advantage": "group_mean", "aggregation": "sequence", "zero_variance_filter": "refill"},
        **{"clip_low": 0.2, "clip_high": 0.28, "temperature": 0.7, "updates_per_batch": 2},
        **{"kl_coef": 0.0, "entropy_coef": 0.0, "learning_rate": 3e-6},
        **{"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "max_new_tokens": 4096},
    }


@pytest.mark.parametrize("text", [VERL_2024, VERL_2025])
def test_explain_agrees_with_the_log(tmp_path: Path, text: str) -> None:
    setup = explain_text(text + STEPS).setup
    recipe = kept(tmp_path / "some.log", text)
    recipe.pop("max_new_tokens")
    for name, value in recipe.items():
        assert getattr(setup, name) == value, name
    unsaid = [name for name in Recipe.model_fields if hasattr(setup, name) and name not in (*recipe, "schedule")]
    assert all(name in setup.assumed or getattr(setup, name) is None for name in unsaid)


def test_a_recipe_column_separates_runs(tmp_path: Path) -> None:
    for name, text in (("ppo", VERL_2024), ("gspo", VERL_2025), ("short", VERL_2024.replace("512", "256"))):
        kept(tmp_path / f"{name}.log", text)
    assert len(conditions_of(load(tmp_path))) == 3


@pytest.mark.parametrize(
    ("config", "recipe", "budget"),
    [
        (
            # An override says no more than itself; the mini-batch is veRL's, so the updates are not known.
            {"data.train_batch_size": "256", "actor_rollout_ref.rollout.n": "8", "algorithm.adv_estimator": "grpo"},
            {"advantage": "group_std"},
            None,
        ),
        # The coefficient is the trainer's own.
        ({"actor_rollout_ref.actor.use_kl_loss": "True", "actor_rollout_ref.rollout.n": "8"}, {}, None),
        (
            {
                **{"trainer.train_batch_size": 128, "trainer.policy_mini_batch_size": 32},
                **{"generator.n_samples_per_prompt": 8, "generator.sampling_params.max_generate_length": 2048},
                **{"trainer.algorithm.policy_loss_type": "cispo", "trainer.algorithm.cispo.cispo_eps_clip_high": 3.0},
                **{"trainer.algorithm.use_kl_loss": False, "trainer.algorithm.use_entropy_loss": False},
                "trainer.policy.optimizer_config.lr": 1e-6,
            },
            {
                **{"loss": "cispo", "ratio_cap": 4.0, "updates_per_batch": 4},
                **{"kl_coef": 0.0, "entropy_coef": 0.0, "learning_rate": 1e-6},
            },
            2048,
        ),
        (
            {
                **{"grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16},
                **{"grpo.normalize_rewards": True, "policy.train_global_batch_size": 256},
                **{"loss_fn.reference_policy_kl_penalty": 0.0, "loss_fn.token_level_loss": False},
                **{"loss_fn.ratio_clip_max": 0.28, "policy.generation.max_new_tokens": 512},
            },
            {
                **{"advantage": "group_std", "aggregation": "sequence", "clip_high": 0.28, "kl_coef": 0.0},
                "updates_per_batch": 2,
            },
            512,
        ),
        (
            {
                **{"rollout_batch_size": 128, "n_samples_per_prompt": 8, "train_batch_size": 1024},
                **{"actor_learning_rate": 5e-7, "init_kl_coef": 0.01, "advantage_estimator": "group_norm"},
                **{"eps_clip_low_high": [0.2, 0.3], "generate_max_len": 1024, "adam_betas": [0.9, 0.95]},
            },
            {
                **{"advantage": "group_std", "clip_low": 0.2, "clip_high": 0.3, "kl_coef": 0.01},
                **{"learning_rate": 5e-7, "beta1": 0.9, "beta2": 0.95, "updates_per_batch": 1},
            },
            1024,
        ),
        (
            {
                **{"orchestrator.batch_size": 512, "orchestrator.group_size": 16, "trainer.optim.lr": 1e-6},
                **{"orchestrator.max_off_policy_steps": 4, "trainer.optim.weight_decay": 0.0},
            },
            {"learning_rate": 1e-6, "weight_decay": 0.0, "pipeline_steps": 4, "ratio_reference": "sampler"},
            None,
        ),
        (
            # As TRL prints it: 4 processes × 4 × 4 rollouts in a generation, 4 × 4 × 2 in an update, each used twice;
            # 20 optimiser steps of warm-up are 5 batches.
            {
                **{"num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
                **{"generation_batch_size": 64, "steps_per_generation": 4, "num_iterations": 2},
                **{"loss_type": "dr_grpo", "scale_rewards": "none", "epsilon": 0.1, "beta": 0.04},
                **{"learning_rate": 2e-6, "temperature": 0.9, "top_p": 0.95, "max_grad_norm": 0.2},
                **{"max_completion_length": 768, "adam_epsilon": 1e-8, "warmup_steps": 20},
            },
            {
                **{"loss": "clip", "aggregation": "fixed", "advantage": "group_mean", "updates_per_batch": 4},
                **{"clip_low": 0.1, "clip_high": 0.1, "kl_coef": 0.04, "learning_rate": 2e-6, "warmup_steps": 5},
                **{"temperature": 0.9, "top_p": 0.95, "grad_clip": 0.2, "epsilon": 1e-8},
            },
            768,
        ),
        (
            {
                **{"groups_per_batch": 16, "group_size": 32, "learning_rate": 4e-5, "kl_penalty_coef": 0.0},
                **{"temperature": 1.0, "max_tokens": 8192, "loss_fn": "ppo", "num_substeps": 2},
                **{"remove_constant_reward_groups": True, "model_name": "Qwen/Qwen3-4B"},
            },
            {
                **{"learning_rate": 4e-5, "kl_coef": 0.0, "temperature": 1.0, "loss": "clip"},
                **{"updates_per_batch": 2, "zero_variance_filter": "policy"},
            },
            8192,
        ),
        ({"finetune.learning_rate": 1e-6, "attempts": 8, "epsilon": 0.2}, {"learning_rate": 1e-6}, None),
    ],
    ids=["verl", "verl-kl", "skyrl", "nemo-rl", "openrlhf", "prime-rl", "trl", "tinker", "pipelinerl"],
)
def test_only_what_the_config_states(config: dict[str, Any], recipe: dict[str, Any], budget: int | None) -> None:
    settings = read_run_config(config).settings
    assert settings.get("recipe", {}) == recipe
    assert settings.get("problem_set", {}).get("max_new_tokens") == budget
    assert set(recipe) <= set(Recipe.model_fields)


@pytest.mark.parametrize("trainer", ["verl", "trl", "openrlhf", "prime-rl", "skyrl", "nemo-rl", "tinker"])
def test_a_log_without_a_config_gives_no_settings(trainer: str) -> None:
    assert read_run_config({"max_steps": 200}, trainer=trainer) == RunConfig({"update_steps": 200})


def rows_of(made: list[dict[str, Any]], **names: str) -> pl.DataFrame:
    """Two runs of each of these, at n = 4 and 8."""
    rows = [
        {
            names.get("run", "run"): f"{i}-n{n}",
            **stated,
            "problems_per_batch": 32,
            names.get("n", "rollouts_per_problem"): n,
            "step": step,
            "rollouts": 32 * n * step,
            "lr_now": 1e-6 / (1 + step),
            "reward": 0.3 + 0.01 * step + 0.1 * i,
        }
        for i, stated in enumerate(made)
        for n in (4, 8)
        for step in range(6)
    ]
    return pl.DataFrame(rows)


WRITERS: dict[str, Any] = {
    "csv": pl.DataFrame.write_csv,
    "jsonl": pl.DataFrame.write_ndjson,
    "parquet": pl.DataFrame.write_parquet,
}


@pytest.mark.parametrize("suffix", list(WRITERS))
@pytest.mark.parametrize("names", [{}, {"run": "experiment", "n": "group_size"}], ids=["ours", "foreign"])
@pytest.mark.parametrize(
    ("made", "settings"),
    [
        ([{"model": "8B"}, {"model": "0.6B"}], [{"model": "8B"}, {"model": "0.6B"}]),
        ([{"dataset": "gsm8k"}, {"dataset": "aime"}], [{"problems": "gsm8k"}, {"problems": "aime"}]),
        ([{"task": "a"}, {"task": "b"}], [{"problems": "a"}, {"problems": "b"}]),
        (
            [{"lr": 1e-6}, {"lr": 1e-5}],
            [{"recipe": {"learning_rate": 1e-6}}, {"recipe": {"learning_rate": 1e-5}}],
        ),
        (
            [{"loss_type": "cispo", "kl_coef": 0}, {"loss_type": "gspo", "kl_coef": 0}],
            [{"recipe": {"loss": "cispo", "kl_coef": 0.0}}, {"recipe": {"loss": "gspo", "kl_coef": 0.0}}],
        ),
    ],
    ids=["model", "dataset", "task", "lr", "loss"],
)
def test_columns_that_say_how_runs_were_made(
    tmp_path: Path, made: list[dict[str, Any]], settings: list[dict[str, Any]], names: dict[str, str], suffix: str
) -> None:
    path = tmp_path / f"table.{suffix}"
    WRITERS[suffix](rows_of(made, **names), path)
    read = load(path)
    assert [c.runs[0].name for c in conditions_of(read)] == ["0-n4", "1-n4"]
    for runs in (read, [item.run for item in import_logs(path)]):
        stated = [run.settings.model_dump(exclude_none=True) for run in runs]
        assert [{k: v for k, v in s.items() if k in ("model", "problems", "recipe")} for s in stated] == [
            settings[0],
            settings[0],
            settings[1],
            settings[1],
        ]
        assert not {"lr", "kl_coef"} & set(runs[0].points.columns)


def test_what_changes_within_a_run_stays_a_metric(tmp_path: Path) -> None:
    table = rows_of([{"temperature": 1.0}]).rename({"lr_now": "learning_rate"})
    table.write_csv(tmp_path / "t.csv")
    for run in (load(tmp_path / "t.csv")[0], import_logs(tmp_path / "t.csv")[0].run):
        assert "learning_rate" in run.metrics
        assert run.settings.recipe == {"temperature": 1.0}


def test_a_column_of_numbers_called_loss_is_a_metric(tmp_path: Path) -> None:
    table = rows_of([{"loss": 0.5, "advantage": 0.0, "clip_low": 0.0, "model": 7}])
    table.write_csv(tmp_path / "t.csv")
    (run, _) = load(tmp_path / "t.csv")
    assert {"loss", "advantage", "clip_low"} <= set(run.metrics)
    assert run.settings.recipe is None and run.settings.model is None


def test_without_a_run_column_what_differs_makes_the_runs(tmp_path: Path) -> None:
    rows_of([{"lr": 1e-6, "model": "a"}, {"lr": 1e-5, "model": "b"}, {"lr": 1e-4, "model": "b"}]).drop("run").write_csv(
        tmp_path / "t.csv"
    )
    runs = load(tmp_path / "t.csv")
    assert len(runs) == 6
    found = [(run.settings.model, (run.settings.recipe or {})["learning_rate"]) for run in runs]
    assert sorted(set(found), key=str) == [("a", 1e-6), ("b", 0.0001), ("b", 1e-5)]


def test_where_takes_the_settings_names(tmp_path: Path) -> None:
    rows_of([{"dataset": "gsm8k", "lr": 1e-6}, {"dataset": "aime", "lr": 1e-5}]).write_csv(tmp_path / "t.csv")
    for where in ({"dataset": "aime"}, {"problems": "aime"}, {"lr": "1e-5"}, {"recipe.learning_rate": "0.00001"}):
        assert [run.name for run in load(tmp_path / "t.csv", where=where)] == ["1-n4", "1-n8"], where


def test_columns_can_be_named(tmp_path: Path) -> None:
    rows_of([{"net": "8B", "eta": 1e-6}]).write_csv(tmp_path / "t.csv")
    run = load(tmp_path / "t.csv", columns={"model": "net", "learning_rate": "eta"})[0]
    assert (run.settings.model, run.settings.recipe) == ("8B", {"learning_rate": 1e-6})


def test_another_run_of_the_same_name_is_not_replaced_in_silence(tmp_path: Path) -> None:
    first, second, out = tmp_path / "a/same/train.log", tmp_path / "b/same/train.log", tmp_path / "out"
    for path, text in ((first, STEPS), (second, STEPS.replace("0.11", "0.33"))):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_runs(import_logs(first), out)
        write_runs(import_logs(first, problems_per_batch=8, rollouts_per_problem=4), out)
        first.write_text(STEPS + "step:9 - critic/score/mean:0.2 - actor/entropy:0.5\n")
        write_runs(import_logs(first), out)
    with pytest.warns(RunWarning, match=r"replaced a different run .*\(from .*a/same/train\.log\)"):
        write_runs(import_logs(second), out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_runs(import_logs(second), out)
    assert len(load(out)) == 1


def test_what_names_say_is_one_line(tmp_path: Path) -> None:
    for n in (4, 8, 16):
        (tmp_path / f"run_n{n}.log").write_text(STEPS)
    result = CliRunner().invoke(app, ["import", str(tmp_path), "--out", str(tmp_path / "out")])
    notes = [line for line in result.stdout.splitlines() if "from the name" in line]
    assert notes == ["note: n = 4, 8, 16 from the names of 3 runs"]
    answer = CliRunner().invoke(app, ["import", str(tmp_path / "run_n8.log"), "--json"])
    assert "n = 8 from the name of the run" in json.loads(answer.stdout)["runs"][0]["notes"]
