"""The meaning of trainers' metrics: which KL, which validation variable, how many samples per problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isocompute.core.metric_names import our_name_among, our_names
from isocompute.data.config import read_run_config
from isocompute.data.folder import read_run
from isocompute.data.importing import import_logs
from isocompute.data.live import LiveRun
from tests.data import made_up as made


@pytest.mark.parametrize(
    ("logged", "base"),
    [
        (["actor/ppo_kl", "critic/kl"], "critic/kl"),  # 2024
        (["actor/ppo_kl", "actor/reward_kl_penalty", "actor/reward_kl_penalty_coeff"], "actor/reward_kl_penalty"),
        (["actor/ppo_kl", "actor/kl_loss", "actor/kl_coef"], "actor/kl_loss"),
        (["actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty"], "actor/reward_kl_penalty"),
        (["actor/ppo_kl"], None),
        (["ppo_kl", "train/ppo_kl"], None),
    ],
)
def test_kl_is_the_one_to_the_base(logged: list[str], base: str | None) -> None:
    assert [name for name, ours in our_names(logged).ours.items() if ours == "kl"] == ([base] if base else [])


def test_verl_with_kl_in_the_reward(tmp_path: Path) -> None:
    line = "step:{} - actor/ppo_kl:0.000 - critic/kl:{} - critic/kl_coeff:0.001 - critic/score/mean:0.5\n"
    (tmp_path / "run.log").write_text("".join(line.format(s, s / 100) for s in range(1, 6)))
    (item,) = import_logs(tmp_path / "run.log")
    assert item.run.points["kl"].to_list() == [0.01, 0.02, 0.03, 0.04, 0.05]
    assert "actor/ppo_kl" in item.run.metrics


def test_verl_decides_for_each_set_which_variable_counts() -> None:
    mixed = ["mean@4", "best@2/mean", "best@4/mean"]
    names = [f"val-aux/A/reward/{kind}" for kind in mixed]
    names += ["val-core/A/acc/mean@4", "val-aux/A/acc/best@2/mean", "val-core/A/acc/best@4/mean"]
    names += ["val-core/B/reward/mean@4", "val-aux/B/reward/best@2/mean", "val-core/B/reward/best@4/mean"]
    found = our_names(names)
    assert found.ours == {
        **{"val-core/A/acc/mean@4": "avg@4/A", "val-core/B/reward/mean@4": "avg@4/B"},
        **{"val-aux/A/acc/best@2/mean": "best@2/A", "val-aux/B/reward/best@2/mean": "best@2/B"},
        **{"val-core/A/acc/best@4/mean": "best@4/A", "val-core/B/reward/best@4/mean": "best@4/B"},
    }
    assert found.means["best@2"] == ("best@2/A", "best@2/B")


def test_verl_without_its_core_metrics_counts_acc() -> None:
    names = ["val-aux/A/reward/mean@2", "val-aux/A/acc/mean@2", "val-aux/B/reward/mean@2", "val-aux/B/other/mean@2"]
    assert our_names(names).ours == {"val-aux/A/acc/mean@2": "avg@2/A", "val-aux/B/reward/mean@2": "avg@2/B"}


@pytest.mark.parametrize(
    ("trainer", "config"),
    [
        ("trl", {"num_generations": 8, "num_generations_eval": 4}),
        ("nemo-rl", {"grpo.val_num_generations_per_prompt": "4"}),
        ("skyrl", {"generator.eval_n_samples_per_prompt": 4}),
        ("openrlhf", {"eval.n_samples_per_prompt": 4}),
        ("openrlhf", {"eval_n_samples_per_prompt": 4}),
    ],
)
def test_how_many_samples_an_evaluation_takes(trainer: str, config: dict[str, object]) -> None:
    assert read_run_config(config, trainer=trainer).evaluation_samples == 4
    assert read_run_config({"num_generations": 8, "num_generations_eval": None}).evaluation_samples == 1


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("eval_reward", "avg@4"),
        ("validation/accuracy", "avg@4"),
        ("eval/all/avg_score", "avg@4"),
        ("val-core/x/acc/mean@2", "avg@2"),  # says its own
        ("eval/x/avg@8", "avg@8"),
        ("eval/x/pass_at_8", "best@8"),
        ("reward", "train/avg"),
    ],
)
def test_an_evaluation_is_named_by_its_samples(theirs: str, ours: str) -> None:
    assert our_names([theirs], samples=4).ours == {theirs: ours}


def test_trl_evaluations_of_several_samples(tmp_path: Path) -> None:
    args = {"num_generations": 8, "num_generations_eval": 4, "generation_batch_size": 64, "steps_per_generation": 4}
    args |= {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2}
    (tmp_path / "args.json").write_text(json.dumps(args))
    (tmp_path / "trainer_state.json").write_text(made.trl_state())
    (item,) = import_logs(tmp_path / "trainer_state.json")
    assert item.run.metrics[0] == "avg@4" and "avg@1" not in item.run.metrics
    run = LiveRun(tmp_path / "live", engine="trl", config=args)
    run.log(5, {"eval_reward": 0.5})
    run.close()
    assert read_run(str(tmp_path / "live"), name="live").metrics == ["avg@4"]


def test_nemo_rl_evaluations_of_several_samples(tmp_path: Path) -> None:
    config = "          'num_prompts_per_step': 32,\n          'val_num_generations_per_prompt': 4},"
    log = made.nemo_rl().replace("          'num_prompts_per_step': 32},", config)
    (tmp_path / "run.log").write_text(log)
    (item,) = import_logs(tmp_path / "run.log")
    assert item.run.metrics[0] == "avg@4" and "avg@1" not in item.run.metrics


def test_a_metric_of_several_samples_is_found_by_its_old_name() -> None:
    assert our_name_among("eval_reward", ["avg@4", "train/avg"]) == "avg@4"
    assert our_name_among("eval_reward", ["avg@1", "avg@4"]) == "avg@1"
    assert our_name_among("eval_reward", ["best@4"]) is None
