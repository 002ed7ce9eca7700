"""Every format, from a small log written here to the points, names and settings of its run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from isocompute import InputError
from isocompute.data.importing import import_logs
from tests.data import made_up as made
from tests.data.made_up import reward
from tests.data.tools import Write, column, one


@pytest.mark.parametrize("maker", made.MAKERS)
def test_the_format_is_found_without_the_name(maker: str, write: Write) -> None:
    wanted = {"verl-2024": "verl", "long-csv": "table", "tracker-csv": "table"}.get(maker, maker)
    items = import_logs(write(made.corpus()[maker]))
    assert {item.format for item in items} == {wanted}
    assert all(item.skipped_lines == item.replaced == 0 for item in items)


STEPS = range(0, 210, 10)
EVALUATED = {"verl": {"val-core/gsm8k/acc/mean@1": 0.33}, "trl": {"eval_reward": 0.33}, "plain": {"val_reward": 0.33}}
TRAINED = {"verl": {"critic/score/mean": 0.28}, "trl": {"reward": 0.28}, "plain": {"train_reward": 0.28}}


def two_rows_a_step(kind: str, order: int) -> str:
    """A log whose evaluation and training rows share an epoch and a clock."""
    of = kind if kind in EVALUATED else "plain"
    rows = [
        {"step": step, "epoch": step / 100, "time": step + at / 2} | metrics
        for step in STEPS
        for at, metrics in enumerate((EVALUATED[of], TRAINED[of])[::order])
    ]
    if kind == "verl":
        return "".join(
            json.dumps({"step": r.pop("step"), "data": {"training/epoch": r.pop("epoch")} | r}) + "\n" for r in rows
        )
    if kind == "trl":
        return json.dumps({"log_history": [{k: v for k, v in row.items() if k != "time"} for row in rows]})
    if kind == "plain":
        return "".join(json.dumps(row) + "\n" for row in rows)
    names = ["step", "epoch", "time", "val_reward", "train_reward"]
    return made.table(names, [[row.get(name, "") for name in names] for row in rows])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("kind", ["verl", "trl", "plain", "csv"])
def test_an_evaluation_and_a_training_row_of_a_step_are_one_point(kind: str, order: int, write: Write) -> None:
    item = one(write(two_rows_a_step(kind, order)))
    assert (item.run.points.height, item.validation_points, item.replaced) == (len(STEPS), len(STEPS), 0)
    assert column(item, "avg@1") == [0.33] * len(STEPS)
    assert column(item, "train/avg") == [0.28] * len(STEPS)


@pytest.mark.parametrize("new", [True, False])
def test_trl_state(new: bool, write: Write) -> None:
    item = one(write(made.trl_state(new=new)))
    assert column(item, "step") == list(range(5, 55, 5))
    assert item.validation_points == 2
    assert item.run.settings.update_steps == 50
    assert {"train/avg", "response_length", "kl", "grad_norm", "learning_rate", "avg@1"} <= set(item.run.metrics)
    if new:
        assert {"truncated", "zero_variance", "entropy"} <= set(item.run.metrics)
        assert column(item, "tokens_with_prompts") == [9000.0 * s for s in range(5, 55, 5)]


def test_trl_checkpoints_are_one_run(write: Write, tmp_path: Path) -> None:
    for last in (20, 50, 100):
        write(made.trl_state(range(5, last + 1, 5)), f"out/run7/checkpoint-{last}/trainer_state.json")
    item = one(tmp_path / "out")
    assert (item.run.name, item.run.points.height) == ("run7", 20)


@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize("bars", ["in turn", "apart", "none"])
def test_trl_console(quoted: bool, bars: str, write: Write) -> None:
    item = one(write(made.trl_console(quoted=quoted, bars=bars)))
    assert column(item, "step") == list(range(5, 55, 5))
    assert column(item, "train/avg") == pytest.approx([reward(s) for s in range(5, 55, 5)], abs=1e-4)
    assert item.validation_points == 1
    assert column(item, "avg@1")[4] == 0.5  # the evaluation belongs to the step before it
    assert item.run.settings.update_steps == 50


def test_trl_console_dict_on_the_bars_line_and_with_args(write: Write) -> None:
    args = "GRPOConfig(\nnum_generations=4,\nper_device_train_batch_size=2,\ngradient_accumulation_steps=2,\n)\n"
    args += "  Total train batch size (w. parallel, distributed & accumulation) = 32\n"
    rows = "".join(f"  1%| | {s}/50 [00:10<01:00, 1.2s/it] {made.trl_row(s)}\r" for s in (10, 20, 30))
    item = one(write(args + rows))
    assert column(item, "step") == [10, 20, 30]
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (8, 4)


def test_trl_dicts_with_a_step_of_their_own(write: Write) -> None:
    rows = [
        {"loss": 0.1, "reward": reward(s), "kl": 0.0, "epoch": 0.1, "global_step/max_steps": f"{s}/60"} for s in (2, 9)
    ]
    assert column(one(write("\n".join(map(str, rows)))), "step") == [2, 9]
    assert column(one(write("\n".join(map(json.dumps, rows)))), "step") == [2, 9]


def test_prime_rl(write: Write) -> None:
    item = one(write(made.prime_rl()))
    assert (item.run.points.height, item.replaced, item.validation_points) == (10, 0, 2)
    assert column(item, "zero_variance") == [0.375] * 10
    for name in ("train/avg", "entropy", "kl", "response_length", "truncated", "grad_norm", "learning_rate"):
        assert name in item.run.metrics
    assert [column(item, name)[4] for name in ("avg@4", "best@4", "worst@4")] == [0.5, 0.7, 0.2]
    again = one(write(made.prime_rl() + made.prime_rl(range(9, 12))))
    assert (again.run.points.height, again.replaced) == (11, 2)


def test_prime_rl_config_counts_rollouts(write: Write) -> None:
    write(
        "max_steps = 20\n[orchestrator]\nbatch_size = 128\ngroup_size = 16\n[trainer.optim]\nlr = 3e-6\n", "out/rl.toml"
    )
    settings = one(write(made.prime_rl(), "out/metrics.jsonl")).run.settings
    assert (settings.problems_per_batch, settings.rollouts_per_problem, settings.update_steps) == (8, 16, 20)


def test_tinker(write: Write) -> None:
    config = {"learning_rate": 4e-5, "dataset_builder": {"groups_per_batch": 32, "group_size": 16}, "model_name": "q"}
    write(json.dumps(config), "a.config.json")
    write(json.dumps(config | {"dataset_builder": {"groups_per_batch": 8, "group_size": 4}}), "b.config.json")
    item, other = one(write(made.tinker(), "a.metrics.jsonl")), one(write(made.tinker(), "b.metrics.jsonl"))
    assert (item.run.name, item.run.points.height, item.validation_points) == ("a", 10, 2)
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (32, 16)
    assert (other.run.settings.problems_per_batch, other.run.settings.rollouts_per_problem) == (8, 4)
    assert column(item, "zero_variance") == [0.25] * 10
    lone = one(write(made.tinker(), "c.metrics.jsonl"))
    assert lone.run.settings.problems_per_batch is None  # a neighbour's config is not this run's
    assert any("Bp and n unknown: compute in steps" in note for note in lone.notes)


def test_tinker_counts_from_0(write: Write) -> None:
    """At step k, k batches are over: the row's own batch comes after them."""
    write(json.dumps({"groups_per_batch": 8, "group_size": 4}), "a.config.json")
    rows = [
        {"step": s, "env/all/reward/total": 0.1, "env/all/ac_tokens_per_turn": 100.0 * (s + 1), "time/total": 10.0 + s}
        for s in range(4)
    ]
    item = one(write("".join(json.dumps(row) + "\n" for row in rows), "a.metrics.jsonl"))
    assert column(item, "rollouts") == [0, 32, 64, 96]
    assert column(item, "tokens") == [0, 3200, 9600, 19200]
    assert column(item, "seconds") == [0, 10, 21, 33]


def test_rows_from_step_0_that_count_their_own_batch(write: Write) -> None:
    rows = "".join(f"{s},{64 * (s + 1)},{10 * (s + 1)},0.5\n" for s in range(4))
    item = one(write("step,rollouts,response_length,avg@1\n" + rows, "a.csv"))
    assert column(item, "tokens") == [640, 1920, 3840, 6400]


def test_openrlhf(write: Write) -> None:
    item = one(write(made.openrlhf()))
    assert (item.run.points.height, item.validation_points) == (10, 2)
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (64, 8)
    assert [column(item, name)[4] for name in ("avg@4", "best@4", "zero_variance")] == [0.2, 0.4, 0.25]
    assert {"train/avg", "entropy", "kl", "response_length", "truncated", "learning_rate"} <= set(item.run.metrics)


@pytest.mark.parametrize("head", ["✨ Global step", "Global step", "global step", "global_step"])
def test_a_global_step_with_timings_is_openrlhf_alone(head: str, write: Write) -> None:
    """OpenRLHF logs `timing/…` as SkyRL does, behind a prefix that ends like SkyRL's own."""
    log = (
        made.openrlhf()
        .replace("✨ Global step", head)
        .replace("{'policy_loss'", "{'timing/ppo_train': 29.9, 'policy_loss'")
    )
    path = write(log)
    item = one(path)
    assert (item.format, item.run.points.height, item.validation_points) == ("openrlhf", 10, 2)
    with pytest.raises(InputError, match="read as skyrl, but there are no points"):
        import_logs(path, format="skyrl")


def test_skyrl(write: Write) -> None:
    item = one(write(made.skyrl()))
    assert (item.run.points.height, item.validation_points) == (10, 2)
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (128, 5)
    assert [column(item, name)[4] for name in ("avg@4", "best@4")] == [0.5, 0.7]
    assert {"train/avg", "entropy", "response_length"} <= set(item.run.metrics)
    command = (
        "+ uv run -m skyrl.train.entrypoints.main_base trainer.max_training_steps=100 trainer.train_batch_size=128\n"
    )
    assert one(write(command + made.skyrl())).run.settings.update_steps == 100


def test_nemo_rl(write: Write) -> None:
    item = one(write(made.nemo_rl()))
    assert column(item, "step") == list(range(11))  # the base model is validated at 0
    assert item.validation_points == 3
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (32, 16)
    assert column(item, "avg@1")[0] == 0.1
    assert column(item, "train/avg")[1:] == pytest.approx([reward(s) for s in range(1, 11)], abs=1e-4)
    second = made.nemo_rl() + "========================= Epoch 2/3 =========================\n"
    second += (
        "========================= Step 1/100 =========================\n📊 Training Results:\n  • Avg Reward: 0.9\n"
    )
    assert column(one(write(second)), "step")[-1] == 101


def test_pipelinerl(write: Write) -> None:
    item = one(write(made.pipelinerl()))
    assert item.run.points.height == 10
    assert {"train/avg", "entropy", "kl", "grad_norm", "learning_rate"} <= set(item.run.metrics)
    assert "loss" not in item.run.metrics  # only ever NaN


def test_trackio(write: Write) -> None:
    a, b = import_logs(write(made.trackio(), "project.db"))
    assert [a.run.name, b.run.name] == ["a", "b"]
    assert column(a, "step") == list(range(10, 110, 10))  # the trainer's step, not the number of the call
    assert (a.run.settings.problems_per_batch, a.run.settings.rollouts_per_problem) == (16, 8)
    assert b.run.settings.problems_per_batch is None


def sqlite(path: Path, columns: str, rows: list[tuple[Any, ...]], table: str = "metrics") -> Path:
    with closing(sqlite3.connect(path)) as base:
        base.execute(f"CREATE TABLE {table} ({columns})")
        base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        base.commit()
    return path


def test_mlflows_table_of_metrics_is_not_trackios(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "mlflow.db", "key TEXT, value REAL, run_uuid TEXT", [("reward", 0.5, "a")])
    with pytest.raises(InputError, match="no known log format; closest is trackio"):
        import_logs(path)


def test_trackios_table_may_be_quoted(tmp_path: Path) -> None:
    """As SQLite stores it where it was renamed."""
    rows = [(step, "a", step, json.dumps({"train/reward": reward(step)})) for step in range(1, 6)]
    columns = "id INTEGER PRIMARY KEY, run_name  TEXT, step INTEGER, metrics TEXT"
    path = sqlite(tmp_path / "project.db", columns, rows, '"metrics"')
    assert column(one(path), "train/avg") == [reward(step) for step in range(1, 6)]


def test_wandb_long_records_span_blocks(write: Write) -> None:
    item = one(write(made.wandb(range(1, 400)), "run-abc123.wandb"))
    assert (item.run.name, item.run.points.height, item.validation_points) == ("brisk-sun-7", 399, 79)
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (64, 16)
    torn = one(write(made.wandb(range(1, 400))[:-1000], "run-abc123.wandb"))
    assert 390 < torn.run.points.height < 399


def test_event_files_of_a_folder_are_one_run(write: Write, tmp_path: Path) -> None:
    write(made.tensorboard(range(1, 6)), "tb/sweep/32x8/events.out.tfevents.1.host.1.0")
    write(made.tensorboard(range(6, 11)), "tb/sweep/32x8/events.out.tfevents.2.host.1.0")
    item = one(tmp_path / "tb")
    assert (item.run.name, item.run.points.height, item.validation_points) == ("sweep/32x8", 10, 10)


def test_the_name_of_a_run_is_a_last_resort(write: Write) -> None:
    item = one(write(made.trl_state(), "easy_bp32_n8.json"))
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (32, 8)
    assert any("from the name of the run" in note for note in item.notes)
    unclear = one(write(made.trl_state(), "bsz256_2_b32_batch32_n8_n16.json"))
    assert (unclear.run.settings.problems_per_batch, unclear.run.settings.rollouts_per_problem) == (None, None)


def test_given_settings_fill_in_and_never_replace(write: Write) -> None:
    item = one(write(made.verl()), problems_per_batch=999, rollouts_per_problem=999)
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (16, 8)
    item = one(write(made.trl_state()), problems_per_batch=4, rollouts_per_problem=2)
    assert column(item, "rollouts") == [8 * s for s in range(5, 55, 5)]
    assert not any("unknown" in note for note in item.notes)


def test_a_format_that_the_user_names(write: Write) -> None:
    path = write(made.verl())
    assert one(path, format="verl").format == "verl"
    with pytest.raises(InputError, match="read as skyrl, but there are no points"):
        import_logs(path, format="skyrl")
    with pytest.raises(InputError, match="--format vrl: not a format; there are verl, "):
        import_logs(path, format="vrl")


@pytest.mark.parametrize("second", ["trl-console", "openrlhf", "skyrl", "nemo-rl", "pipelinerl", "tinker"])
def test_two_formats_in_one_file(second: str, write: Write) -> None:
    path = write(made.corpus()["verl"] + made.corpus()[second])
    with pytest.raises(InputError) as caught:
        import_logs(path)
    for part in ("two formats in one file", "verl", second, "--format"):
        assert part in str(caught.value)
    assert one(path, format="verl").run.points.height == 10


def test_prime_rls_evaluations_have_the_step_of_their_policy(write: Write) -> None:
    """A step is counted before its evaluations begin: the base model's is logged as step 1."""
    rows = [{"step": k, "time": 1.0, "reward/all/mean": 0.1, "progress/rollouts": 8} for k in range(1, 11)]
    for step, version in ((1, 0), (5, 4), (10, 7)):
        values = {"effective/solver/avg@4": version / 10, "policy_version": float(version)}
        rows.append({"step": step, "time": 1.0} | {f"eval/gsm8k/{k}": v for k, v in values.items()})
    item = one(write("".join(json.dumps(row) + "\n" for row in rows)))
    assert item.format == "prime-rl"
    held_out = item.run.points.drop_nulls("avg@4")
    assert held_out.select("step", "rollouts", "avg@4").rows() == [(0, 0, 0.0), (4, 32, 0.4), (7, 56, 0.7)]


def test_nemo_rls_monitor_makes_no_steps(write: Write) -> None:
    """It writes into the same file, at the seconds that have passed."""
    item = one(write(made.tensorboard(monitor=range(10, 1200, 10)), "events.out.tfevents.1.host.1.0"))
    assert item.run.points["step"].to_list() == list(range(1, 11))
    assert not [name for name in item.run.metrics if name.startswith("ray/")]
    assert any("counts seconds, not steps" in note for note in item.notes)


def test_a_metric_spelled_two_ways_is_one_curve(write: Write) -> None:
    """veRL of late 2024 logs the base model's validation without the `val/` of the later ones."""
    log = made.verl_2024(range(20))
    item = one(write(log))
    assert item.validation_points == 5
    assert item.run.points["avg@1"].drop_nulls().to_list() == [round(made.reward(s), 3) for s in range(0, 21, 5)]
    assert not [name for name in item.run.metrics if "test_score" in name]
    # Both in one row: the first stands, the other one is kept beside it.
    both = log.replace("step:4 - ", "step:4 - test_score/openai/gsm8k:0.125 - ")
    points = one(write(both)).run.points
    assert points["avg@1"][5] == 0.125
    assert points["val/test_score/openai/gsm8k"][5] == round(made.reward(5), 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "the file is empty"),
        ("hello\nworld\n", "no known log format; nothing in it comes close"),
        (made.VERL_CONFIG, "closest is verl: veRL's config is there, but no line"),
        (
            "prompt,reward_model,extra\na,b,c\nd,e,f\n",
            r"some.dat: this is a set of problems \(one row per problem\), not a training log; "
            r"isocompute split reads those\.$",
        ),
        ("a,b\n1,2\n3,4\n", "closest is table: no run counts compute in rollouts"),
        ("step,note\n1,x\n2,y\n", "closest is table: no column of numbers besides the step"),
        ('{"log_history": [{"step": 1', "not a whole JSON file"),
        ('{"log_history": 5}', "needs a list 'log_history'"),
    ],
)
def test_a_file_that_is_no_log(data: str, message: str, write: Write) -> None:
    with pytest.raises(InputError, match=message) as caught:
        import_logs(write(data))
    if "no known" in message or "closest" in message:
        assert "Looked for verl: lines 'step:N - key:value" in str(caught.value)
