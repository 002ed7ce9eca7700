"""Files beside a log and in a run's folder: configs, rollout dumps, pass rates of another run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from isocompute.data import RunWarning
from isocompute.data.importing import import_logs, write_runs
from tests.data import made_up as made

ARGS: dict[str, object] = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
ARGS |= {"generation_batch_size": 256, "steps_per_generation": 4, "learning_rate": 1e-6}
MODEL: dict[str, object] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "vocab_size": 151936,
}


def test_a_run_config_with_the_models_in_it(tmp_path: Path) -> None:
    """As transformers writes a run's config at W&B: the model's config and the trainer's arguments in one."""
    lines = [f"{key}:\n    value: {json.dumps(value)}\n" for key, value in (MODEL | ARGS).items()]
    (tmp_path / "config.yaml").write_text("_wandb:\n    value:\n        t: 1\n" + "".join(lines))
    (tmp_path / "output.log").write_text(made.trl_console())
    (item,) = import_logs(tmp_path / "output.log")
    assert (item.run.settings.problems_per_batch, item.run.settings.rollouts_per_problem) == (32, 8)


def test_a_models_own_config_is_not_the_runs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"num_hidden_layers": 24, "torch_dtype": "bfloat16"}))
    (tmp_path / "args.json").write_text(json.dumps(ARGS))
    (tmp_path / "trainer_state.json").write_text(made.trl_state())
    (item,) = import_logs(tmp_path / "trainer_state.json")
    assert item.run.settings.problems_per_batch == 32


def dump(folder: Path, rows: list[dict[str, object]], step: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"input": f"q{i // 2}", "output": "…", "gts": "1", "step": step} | row for i, row in enumerate(rows)]
    (folder / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    "rows",
    [
        [{"score": 1.0 if right else -1.0, "acc": right} for right in (True, False, True, True)],
        [{"score": 1.0 if right else 0.0, "acc": None} for right in (1, 0, 1, 1)],
        [{"score": bool(right)} for right in (1, 0, 1, 1)],
        [{"score": 1.0 if right else 0.0, "acc": "n/a"} for right in (1, 0, 1, 1)],
    ],
    ids=["true or false", "empty", "a score that is true or false", "text"],
)
def test_rollout_dumps_whose_acc_is_no_number(rows: list[dict[str, object]], tmp_path: Path) -> None:
    (item,) = import_logs(dump(tmp_path / "rollouts", rows))
    assert item.run.points["train/avg"].to_list() == [0.75]
    assert sorted(map(list, item.pass_rates.values())) == [[1, 2], [2, 2]]
    assert item.skipped_lines == 0


def rates(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "pass_rates.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "expected"), [("val_generations", "validation"), ("rollouts", "train")])
def test_pass_rates_name_their_set(name: str, expected: str, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"score": 1.0}, {"score": 0.0}]
    (folder,) = write_runs(import_logs(dump(tmp_path / name, rows)), tmp_path / "runs")
    assert [line["set"] for line in rates(folder)] == [expected]


def test_another_run_leaves_no_pass_rates_behind(tmp_path: Path) -> None:
    first = dump(tmp_path / "a" / "grid7", [{"score": 1.0}, {"score": 0.0}])
    (folder,) = write_runs(import_logs(first), tmp_path / "runs")
    assert rates(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_runs(import_logs(first), tmp_path / "runs")  # the same again
        write_runs(import_logs(tmp_path / "runs"), tmp_path / "runs")  # the folder itself
    assert rates(folder)
    (tmp_path / "grid7.csv").write_text("step,eval_reward\n1,0.5\n2,0.6\n3,0.7\n")
    with pytest.warns(RunWarning, match=r"replaced a different run of the same name: 'grid7' \(from "):
        write_runs(import_logs(tmp_path / "grid7.csv"), tmp_path / "runs")
    assert not (folder / "pass_rates.jsonl").exists()


def test_a_runs_own_points_keep_its_pass_rates(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"problems_per_batch": 2, "rollouts_per_problem": 2}')
    (run / "points.jsonl").write_text(
        "".join(f'{{"step": {s}, "rollouts": {4 * s}, "avg@1": 0.5}}\n' for s in range(3))
    )
    (run / "pass_rates.jsonl").write_text(
        '{"step": 0, "set": "train", "problems": ["x"], "samples": [2], "correct": [1]}\n'
    )
    write_runs(import_logs(run / "points.jsonl"), tmp_path / "runs")
    assert (run / "pass_rates.jsonl").exists()
