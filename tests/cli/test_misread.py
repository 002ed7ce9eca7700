"""How commands read runs whose files are ambiguous."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commands import Call, fails
from tests.conftest import write_points


def console(path: Path, *, head: str = "") -> Path:
    """veRL's console, which does not say n unless its `head` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"step:{i} - val-core/gsm8k/acc/mean@4:{0.3 + 0.01 * i:.3f}\n" for i in range(12)]
    path.write_text(head + "".join(lines))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in a file whose name seems to say n."""
    return console(tmp_path / "llama-n2.log")


@pytest.mark.parametrize("command", ["fit", "forecast"])
def test_a_flag_beats_the_name_of_a_log(call: Call, log: Path, command: str) -> None:
    told = call(command, log, "--problems-per-batch", "64", "--rollouts-per-problem", "16", "--json")
    assert told.code == 0 and "by the name" not in told.err
    if command == "fit":
        assert told.json["curves"][0]["rollouts_per_problem"] == 16
    else:
        assert told.json["fitted_until"] == 64 * 16 * 11


def test_what_only_a_name_says_is_told(call: Call, log: Path) -> None:
    told = call("forecast", log, "--problems-per-batch", "64")
    assert "n = 2 of 'llama-n2' by the name alone; say --rollouts-per-problem" in told.err


TOLD = ("--problems-per-batch", "64", "--rollouts-per-problem", "16")


@pytest.mark.parametrize("command", ["fit", "import"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_flag_that_makes_one_setting_of_different_names_is_told(
    call: Call, tmp_path: Path, command: str, apart: bool
) -> None:
    logs = [console(tmp_path / "logs" / f"llama-n{n}-bp64.log") for n in (2, 2, 4, 8)]
    given = logs if apart else [tmp_path / "logs"]
    quick = ("--replicates", "50") if command == "fit" else ("--out", tmp_path / "out")
    told = call(command, *given, *TOLD, *quick)
    assert told.code == 0
    assert told.err.count("--rollouts-per-problem 16") == 1
    assert (
        "--rollouts-per-problem 16 applies to runs whose names differ ('llama-n2-bp64' says n = 2, "
        "'llama-n4-bp64' says n = 4): leave it out if the names are right"
    ) in told.err
    assert "--problems-per-batch" not in told.err


def test_a_flag_is_not_told_of_where_names_agree_or_the_runs_say_it(call: Call, tmp_path: Path) -> None:
    for seed in (1, 2):
        console(tmp_path / "same" / f"llama-n2-s{seed}.log")
    head = "actor_rollout_ref.rollout.n=8 data.train_batch_size=64\n"
    for n in (2, 4):
        console(tmp_path / "said" / f"llama-n{n}.log", head=f"python3 -m verl.trainer.main_ppo {head}")
        rows = [{"step": s, "avg@4": 0.2 + 0.02 * s} for s in range(1, 9)]
        write_points(tmp_path / "folders" / f"llama-n{n}", rows, problems_per_batch=64, rollouts_per_problem=n)
    console(tmp_path / "one" / "llama-n2.log")
    console(tmp_path / "one" / "llama.log")
    for folder in ("same", "said", "folders", "one"):
        assert "applies to runs" not in call("fit", tmp_path / folder, *TOLD, "--replicates", "50").err, folder


def test_a_run_that_is_left_out_does_not_make_names_differ(call: Call, tmp_path: Path) -> None:
    for n in (2, 4):
        console(tmp_path / f"llama-n{n}.log")
    told = call("fit", tmp_path, *TOLD, "--without", "llama-n4", "--replicates", "50")
    assert told.code == 0 and "applies to runs" not in told.err


def sweep(path: Path, *, percent: tuple[int, ...] = ()) -> Path:
    lines = ["run,problems_per_batch,rollouts_per_problem,rollouts,avg@4"]
    compute_C = np.geomspace(1e3, 1e5, 20)
    for n in (8, 32):
        values_C = 0.2 + 0.4 / (1 + (1e3 * n / compute_C)) * (1 if n == 8 else 1.1)
        values_C *= 100 if n in percent else 1
        lines += [f"n{n},32,{n},{c:.0f},{v:.4f}" for c, v in zip(compute_C, values_C, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_percent_beside_rates_are_told(call: Call, tmp_path: Path) -> None:
    mixed = sweep(tmp_path / "mixed.csv", percent=(32,))
    asked = {
        "fit": (mixed, "--replicates", "50"),
        "plan": ("--law", mixed, "--budget", "5e4", "--replicates", "100"),
        "claims": (mixed,),
        "compare": (f"{mixed}::n8", f"{mixed}::n32", "--replicates", "50"),
    }
    for command, arguments in asked.items():
        assert "('n32' goes up to 5" in call(command, *arguments).err, command
    for same in (sweep(tmp_path / "rates.csv"), sweep(tmp_path / "percent.csv", percent=(8, 32))):
        assert "percent" not in call("fit", same, "--replicates", "50").err


def test_a_column_of_text_is_told_of_once_a_study(call: Call, tmp_path: Path) -> None:
    for n in (8, 16, 32):
        rows = [{"step": s, "avg@4": 0.2 + 0.02 * s, "eta": "-" if s == 1 else 10 - s} for s in range(1, 9)]
        write_points(tmp_path / f"n{n}", rows, problems_per_batch=32, rollouts_per_problem=n)
    told = call("fit", tmp_path, "--replicates", "50").err
    assert told.count("warning:") == 1
    assert "column 'eta': '-' (row 1) is not a number in run 'n" in told and "' and in 2 more: taken for text" in told


def test_a_metric_that_is_named_needs_no_other(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    rows = [f"r,{s},{s * 512},{'-' if s == 3 else 0.1 * s:},{0.05 * s}" for s in range(1, 9)]
    path.write_text("\n".join(["run,step,rollouts,val_acc,reward", *rows]) + "\n")
    assert call("fit", path, "--metric", "reward", "--replicates", "50").code == 0
    fails(call("fit", path), "run 'r', column 'val_acc': '-' .row 3. is not a number; .* or say --metric reward")


def test_what_is_read_again_warns_of_what_it_is(call: Call, tmp_path: Path) -> None:
    """--where is about rows, so that the table is no log: what it said as one does not count."""
    path = tmp_path / "foreign.csv"
    rows = [f"run-n4-bp32,{s},a,{0.1 * s:.2f},{'-' if s == 3 else 0.1}" for s in range(1, 9)]
    path.write_text("\n".join(["run_name,global_step,split,val_reward,kl", *rows]) + "\n")
    told = call("forecast", path, "--where", "split=a").err
    assert told.count("column 'kl'") == 1 and "by the name alone" not in told


def test_what_one_seed_may_differ_by_does_not_depend_on_the_metrics_unit(call: Call, tmp_path: Path) -> None:
    assert "a standard deviation of 3.0% of the rise is assumed" in " ".join(
        call("fit", sweep(tmp_path / "percent.csv", percent=(8, 32)), "--replicates", "50").out.split()
    )
    assert "a standard deviation of 3.0% of the rise is assumed" in " ".join(
        call("fit", sweep(tmp_path / "rates.csv"), "--replicates", "50").out.split()
    )
