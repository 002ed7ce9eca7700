"""`explain` on configs as people write them: Bp, n, M, and warnings."""

from __future__ import annotations

import contextlib
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.cli.explain import explain_json
from isocompute.core.errors import InputError
from isocompute.trainers import TRAINERS, Explanation, explain, explain_text, export_plan, make_plan
from isocompute.trainers.reading import describe


def odd(found: Explanation) -> set[str]:
    return {note.code for note in found.warnings}


VERL = r"""
#!/bin/bash
set -x
# two updates per batch, variables, sums, an array and quotes
export N_GPUS=8
train_prompt_bsz=512
n_resp_per_prompt=${N:-16}
max_prompt=$((1024 * 2)); max_response=$((max_prompt + 1024))
: "${LR:=1e-6}"
ARGS=(
    data.train_batch_size=${train_prompt_bsz}   # problems
    actor_rollout_ref.rollout.n=${n_resp_per_prompt}
)
python3 -m verl.trainer.main_ppo --config-name=ppo_trainer \
    algorithm.adv_estimator=grpo \
    "${ARGS[@]}" \
    data.max_response_length=${max_response} \
    +actor_rollout_ref.actor.optim.lr=$LR \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    data.train_files="['$HOME/data/math hard.parquet']" \
    trainer.n_gpus_per_node=$N_GPUS trainer.nnodes=1 \
    trainer.total_epochs=10 $@
"""


def test_a_verl_script() -> None:
    found = explain_text(VERL)
    setup = found.setup
    assert (setup.trainer, setup.problems_per_batch, setup.rollouts_per_problem) == ("verl", 512, 16)
    assert (setup.updates_per_batch, setup.on_policy) == (2, False)
    assert (setup.max_response_length, setup.learning_rate, setup.kl_coef, setup.gpus) == (3072, 1e-6, 0.001, 8)
    assert setup.update_steps is None and setup.compute is None
    assert odd(found) >= {"off_policy", "steps_unknown"}
    with_size = explain_text(VERL, problems=12_000).setup
    assert (with_size.update_steps, with_size.compute) == (230, 230 * 8192)


def test_verl_yaml_builds_on_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("data:\n  train_batch_size: 64\nactor_rollout_ref:\n  rollout: {n: 4}\n")
    child = "defaults: [base, _self_]\nactor_rollout_ref:\n  rollout:\n    n: 8\n  actor:\n"
    child += "    ppo_mini_batch_size: ${data.train_batch_size}\ntrainer: {total_training_steps: 7}\n"
    (tmp_path / "child.yaml").write_text(child)
    setup = explain(str(tmp_path / "child.yaml")).setup
    assert (setup.problems_per_batch, setup.rollouts_per_problem, setup.update_steps) == (64, 8, 7)
    assert setup.on_policy
    (tmp_path / "base.yaml").unlink()
    assert "builds_on" in odd(explain(str(tmp_path / "child.yaml")))


TRL = """
import argparse
from trl import GRPOConfig, GRPOTrainer
N = 8
EXTRA = {"beta": 0.04, "max_steps": 100}
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=5e-6)
args = parser.parse_args()
raise SystemExit("this file is never run")
training_args = GRPOConfig(
    output_dir=f"out-{N}", num_generations=N, per_device_train_batch_size=N, gradient_accumulation_steps=2 * 2,
    learning_rate=args.lr, bf16=torch.cuda.is_available(), **EXTRA,
)
"""


def test_a_grpo_config_in_a_script() -> None:
    found = explain_text(TRL)
    setup = found.setup
    assert (setup.problems_per_batch, setup.rollouts_per_problem, setup.update_steps) == (4, 8, 100)
    assert (setup.learning_rate, setup.kl_coef, setup.aggregation, setup.on_policy) == (5e-6, 0.04, "token", True)
    assert odd(found) >= {"processes", "completions", "schedule"}
    on_eight = explain_text(TRL, gpus=8).setup
    assert (on_eight.problems_per_batch, on_eight.compute) == (32, 32 * 8 * 100)


def test_trl_with_steps_per_generation_is_off_policy() -> None:
    text = (
        "num_generations: 8\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nsteps_per_generation: 8\n"
    )
    found = explain_text(text + "max_steps: 40\nuse_vllm: true\nloss_type: cispo\nepsilon_high: 0.28\n", gpus=4)
    assert (found.setup.problems_per_batch, found.setup.updates_per_batch, found.setup.update_steps) == (32, 4, 10)
    assert odd(found) >= {"off_policy", "tis", "cispo_cap"}


def test_a_batch_that_trl_refuses() -> None:
    found = explain_text("num_generations: 7\nper_device_train_batch_size: 8\nloss_type: grpoo\n", gpus=1)
    assert odd(found) >= {"generation_batch", "loss", "steps_unknown"}
    assert found.setup.problems_per_batch is None
    assert "On-policy" not in describe(found.setup, "veRL", [], {})


def test_a_batch_that_does_not_divide_does_not_run() -> None:
    text = "data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=100 actor_rollout_ref.rollout.n=8"
    found = explain_text(f"python3 -m verl.trainer.main_ppo {text} trainer.total_training_steps=5")
    assert "does not run as it stands" in describe(found.setup, "veRL", [], {})
    assert "off_policy" not in odd(found)


def test_a_trl_command_line() -> None:
    text = "accelerate launch --num_processes 4 train.py --num-generations=8 --max_steps 9 "
    text += "--per_device_train_batch_size 16"
    setup = explain_text(text).setup
    assert (setup.trainer, setup.gpus, setup.problems_per_batch, setup.update_steps) == ("trl", 4, 8, 9)


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m openrlhf.cli.train_ppo_ray --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 "
        "--train.batch_size 1024 --data.max_samples 128000 --algo.advantage.estimator group_norm "
        "--actor.eps_clip_low_high 0.2 0.28",
        "deepspeed --module openrlhf.cli.train_ppo_ray \\\n  --rollout_batch_size 128 \\\n"
        "  --n_samples_per_prompt 8 \\\n  --train_batch_size 1024 \\\n  --max_samples 128000 "
        "--advantage_estimator group_norm --eps_clip_low_high 0.2 0.28",
    ],
)
def test_openrlhf_flags_of_today_and_before(text: str) -> None:
    found = explain_text(text)
    setup = found.setup
    assert (setup.problems_per_batch, setup.rollouts_per_problem, setup.update_steps) == (128, 8, 1000)
    assert (setup.clip_low, setup.clip_high, setup.advantage, setup.on_policy) == (0.2, 0.28, "group_std", True)
    assert odd(found) >= {"kl_in_reward", "schedule", "data_size"}


def test_prime_rl_counts_rollouts_and_runs_ahead() -> None:
    text = "max_steps = 20\n[orchestrator]\nbatch_size = 128\nrollouts_per_example = 16\n[trainer.optim]\nlr = 3e-6\n"
    found = explain_text(text)
    assert (found.setup.problems_per_batch, found.setup.rollouts_per_problem) == (8, 16)
    assert not found.setup.on_policy and "stale" in odd(found)


def test_nemo_rl_with_a_smaller_train_batch() -> None:
    text = "grpo:\n  num_prompts_per_step: 64\n  num_generations_per_prompt: 32\n  max_num_steps: 500\n"
    found = explain_text(text + "policy:\n  train_global_batch_size: 512\nloss_fn: {use_cispo: true}\n")
    assert (found.setup.batch_size, found.setup.updates_per_batch) == (2048, 4)
    assert odd(found) >= {"off_policy", "cispo_cap", "data_size"}


def test_skyrl_has_kl_on_by_default() -> None:
    text = "uv run -m skyrl.train.entrypoints.main_base trainer.train_batch_size=64 trainer.policy_mini_batch_size=64 "
    found = explain_text(text + "generator.n_samples_per_prompt=8 data.train_data=\"['hard.parquet']\"")
    assert found.setup.kl_coef == 0.001
    assert odd(found) >= {"regularisers", "steps_unknown"}


def test_a_single_rollout_with_a_group_baseline() -> None:
    found = explain_text("algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1")
    assert "group" in odd(found)
    assert "The file does not set Bp" in found.text


def test_a_cispo_cap_without_effect() -> None:
    lines = (
        "actor_rollout_ref.actor.policy_loss.loss_mode=cispo data.train_batch_size=256 actor_rollout_ref.rollout.n=8 "
    )
    lines += "actor_rollout_ref.actor.clip_ratio_low=1 actor_rollout_ref.actor.clip_ratio_high=4"
    found = explain_text(lines)
    assert found.setup.ratio_cap == 5
    assert "cispo_anchor" in odd(found)


def test_values_from_outside_the_file_are_unknown() -> None:
    found = explain_text("for n in 8 16; do\n  run actor_rollout_ref.rollout.n=$n data.train_batch_size=32\ndone")
    assert found.setup.rollouts_per_problem is None
    assert "unresolved" in odd(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("hello world", "not a trainer's config"),
        ("a: 1\nb: 2\n", "read as yaml: a, b"),
        ("import os\nprint(os)\n", "no GRPOConfig"),
        ('{"a": [1, 2]}', "read as json"),
    ],
)
def test_what_is_no_config(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explain_text(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "binary"):
        with pytest.raises(InputError):
            explain(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: 1}\n"
        + "".join(f"{b}: &{b} {{p: *{a}, q: *{a}, r: *{a}}}\n" for a, b in pairwise("abcdefghijklmnop")),
        "grpo: &a\n  again: *a\n",
        "X=1\n" + "X=$X$X\n" * 60 + "actor_rollout_ref.rollout.n=$X",
        "actor_rollout_ref.rollout.n=$((" + "9" * 4000 + "*" + "9" * 4000 + "))",
        "[" * 5000,
        "GRPOConfig(num_generations=" + "-" * 5000 + "1)",
    ],
    ids=["aliases", "cycle", "doubling", "large", "deep", "signs"],
)
def test_bombs_do_not_go_off(text: str) -> None:
    with contextlib.suppress(InputError):
        explain_text(text)


EXPORTS = [
    file.text
    for trainer in TRAINERS
    for file in export_plan(trainer=trainer, plan=make_plan({"Bp": 32, "n": 8, "M": 100})).files
]


VALUES = ["0", "-5", "1e308", "nan", "", "null", "[]", "{}", "true", "9" * 30, "1.5", '"x"', "$X", "${a.b}", "[1", "~"]
JUNK = ["${", "$((", "[[", "'", '"', "=(", "{" * 60, "\x00", "1e999", "0x0for"]


@settings(max_examples=100)
@given(text=st.sampled_from(EXPORTS), data=st.data())
def test_torn_and_mangled_configs_never_crash(text: str, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        numbers = list(re.finditer(r"(?<=[=: ])-?\d+(\.\d+)?(e-?\d+)?", text))
        for match in reversed(data.draw(st.lists(st.sampled_from(numbers), max_size=8, unique_by=re.Match.start))):
            text = text[: match.start()] + data.draw(st.sampled_from(VALUES)) + text[match.end() :]
    else:
        start, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        text = text[:start] + data.draw(st.text(max_size=8) | st.sampled_from(JUNK)) + text[end:]
    with contextlib.suppress(InputError):
        json.dumps(explain_json(explain_text(text)), allow_nan=False)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_byte_order_mark_is_no_part_of_a_config(trainer: str, tmp_path: Path) -> None:
    for file in export_plan(trainer=trainer, plan={"Bp": 32, "n": 8, "M": 100}).files:
        path = tmp_path / file.name
        path.write_text(file.text, encoding="utf-8-sig")
        assert explain(str(path), problems=10_000) == explain_text(file.text, source=str(path), problems=10_000)


def test_a_config_that_another_builds_on_may_have_a_mark_and_must_be_text(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("defaults: base.yaml\ngrpo:\n  num_prompts_per_step: 32\n")
    (tmp_path / "base.yaml").write_text("grpo:\n  num_generations_per_prompt: 8\n", encoding="utf-8-sig")
    assert explain(str(tmp_path / "run.yaml")).setup.rollouts_per_problem == 8
    (tmp_path / "base.yaml").write_bytes(b"grpo:\n  name: \xff\n")
    with pytest.raises(InputError, match=r"base\.yaml: not text"):
        explain(str(tmp_path / "run.yaml"))
