"""What a user sees around the commands: warnings, help, start-up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from isocompute import __version__
from isocompute.cli import quickstart
from tests.cli.tools import QUICK
from tests.commands import Call, Result
from tests.conftest import rising, write_points


def test_warnings_go_to_standard_error(call: Call, tmp_path: Path) -> None:
    path = write_points(tmp_path / "torn", rising(12)) / "points.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    result = call("forecast", tmp_path / "torn", "--json")
    assert result.json["fitted_points"] == 11
    assert result.err == f"warning: {path}: the last line is torn and was dropped\n"


def test_names_are_shown_as_they_are(call: Call, tmp_path: Path) -> None:
    for name in ("lr[/b]", "[red]x", ":smile:"):
        write_points(tmp_path / "runs" / name.replace("/", "\u2044"), rising(12))
    table = tmp_path / "t.csv"
    rows = [f"lr[/b],{p['step']},{p['avg@4']}" for p in rising(12)]
    table.write_text("run,step,avg@4\n" + "\n".join(rows) + "\n")
    assert re.search(r"^lr\[/b\] ", call("fit", table, *QUICK).out, re.MULTILINE)
    text = call("fit", tmp_path / "runs", *QUICK).out
    assert "[red]x" in text
    assert ":smile:" in text


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "quickstart"])
def test_help(call: Call, command: str) -> None:
    result = call(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: isocompute {command}")
    assert "--chart" in result.out or command == "quickstart"


def test_help_lists_the_commands(call: Call) -> None:
    result = call("--help")
    for command in ("fit", "forecast", "compare", "quickstart"):
        assert re.search(rf"^  {command} ", result.out, re.MULTILINE)


def test_version(call: Call) -> None:
    assert call("--version") == Result(0, f"isocompute {__version__}\n", "")


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isocompute", "fit", "nowhere"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere: no such file or folder.\n"


def test_start_up_is_light() -> None:
    """`--help` answers at once: nothing heavy is imported before a command runs."""
    script = (
        "import runpy, sys\n"
        "sys.argv = ['isocompute', '--help']\n"
        "try: runpy.run_module('isocompute', run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: isocompute")
    loaded = set(re.findall(r"'(\w+)'", done.stderr))
    assert "isocompute" in loaded
    assert not loaded & {"numpy", "polars", "scipy", "altair", "pydantic", "vl_convert", "torch", "fsspec"}


@pytest.mark.parametrize(
    "args",
    [
        ("train", "--update-steps", "1"),
        ("split", "chain:easy", "--model", "nowhere", "--out", "x"),
        ("lm", "bench"),
        ("lm", "fetch", "smollm2"),
        ("lm", "pretrain", "x"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(tmp_path: Path, args: tuple[str, ...]) -> None:
    script = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': raise ModuleNotFoundError('No module named torch', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "from isocompute.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*needs torch; pip install 'isocompute\[rl\]'\.\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_help_has_every_command_under_a_heading_and_cuts_none(call: Call) -> None:
    out = call("--help").out
    headings = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
    assert headings == ["Options", "Start", "Your runs", "Spend a budget", "Make runs"]
    assert out.count("\n  ") >= 17 and "..." not in out.split("Start:")[1]


@pytest.mark.parametrize(
    ("over_n", "over_bp", "holds"),
    [((0.05, 0.1), (0.0, 0.02), True), ((0.0, 0.02), (0.05, 0.1), False), ((0.01, 0.1), (0.0, 0.02), None)],
)
def test_quickstart_decides_by_intervals(
    over_n: tuple[float, float], over_bp: tuple[float, float], holds: bool | None
) -> None:
    assert quickstart._above(over_n, over_bp) is holds
