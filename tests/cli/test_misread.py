"""What a command takes runs to be, where their files can be misread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commands import Call


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """veRL's console, which does not say n, in a file whose name seems to."""
    path = tmp_path / "llama-n2.log"
    path.write_text("".join(f"step:{i} - val-core/gsm8k/acc/mean@4:{0.3 + 0.01 * i:.3f}\n" for i in range(12)))
    return path


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
