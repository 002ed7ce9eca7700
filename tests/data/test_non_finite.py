"""Metrics of a trainer's log that are no longer finite: `health` reports them, and all else ignores them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from isocompute import check_health
from isocompute.core.errors import InputError
from isocompute.core.run import Run
from isocompute.data import RunWarning, load
from isocompute.data.importing import import_logs, write_runs
from isocompute.data.live import LiveRun
from tests.commands import Call
from tests.data import made_up as made

NAN, INF = float("nan"), float("inf")
Change = Callable[[int], dict[str, Any]]


def broken(step: int) -> dict[str, Any]:
    """Gradients explode at step 9, and nothing is a number from step 10 on."""
    grad_norm = INF if step == 9 else NAN if step > 9 else 0.5
    return {"loss": NAN if step > 9 else 0.1, "grad_norm": grad_norm}


def unmeasured(step: int) -> dict[str, Any]:
    """NaN where nothing was measured: from the start, and between evaluations."""
    return {"loss": NAN, "val/acc/mean@4": 0.01 * step if step % 4 == 1 else NAN}


def verl_rows(change: Change) -> list[tuple[int, dict[str, Any]]]:
    names = {"loss": "actor/pg_loss", "grad_norm": "actor/grad_norm"}
    return [(s, made.verl_pairs(s) | {names.get(k, k): v for k, v in change(s).items()}) for s in range(1, 16)]


def verl(change: Change) -> str:
    return "".join(made.verl_line(step, row) + "\n" for step, row in verl_rows(change))


def verl_file(change: Change) -> str:
    return "".join(json.dumps({"step": step, "data": row}) + "\n" for step, row in verl_rows(change))


def trl_state(change: Change) -> str:
    history = [made.trl_row(s) | change(s) | {"step": s} for s in range(1, 16)]
    return json.dumps({"global_step": 15, "log_history": history, "max_steps": 50})


def trl_console(change: Change) -> str:
    return "".join(str(made.trl_row(s) | change(s)) + "\n" for s in range(1, 16))


FORMATS: dict[str, Callable[[Change], str]] = {
    "verl": verl,
    "verl-file": verl_file,
    "trl-state": trl_state,
    "trl-console": trl_console,
}


def imported(tmp_path: Path, kind: str, change: Change) -> Run:
    path = tmp_path / "some.log"
    path.write_text(FORMATS[kind](change))
    (item,) = import_logs(path)
    return item.run


@pytest.mark.parametrize("kind", list(FORMATS))
def test_health_sees_in_a_log_what_it_sees_in_a_run(kind: str, tmp_path: Path, call: Call) -> None:
    run = imported(tmp_path, kind, broken)
    assert run.points["grad_norm"].to_list() == [0.5] * 8 + [None] * 7
    code, out, err = call("health", tmp_path / "some.log", "--json")
    (found,) = (f for f in json.loads(out)["runs"][0]["findings"] if f["code"] == "non_finite")
    assert (code, err, found["since_step"], found["evidence"]) == (1, "", 9, "grad_norm is infinite")


@pytest.mark.parametrize("kind", list(FORMATS))
def test_what_was_not_measured_is_no_finding(kind: str, tmp_path: Path) -> None:
    run = imported(tmp_path, kind, unmeasured)
    assert "non_finite" not in run.points.columns
    (health,) = check_health(tmp_path / "some.log")
    assert "non_finite" not in [finding.code for finding in health.findings]


def test_a_run_folder_keeps_it(tmp_path: Path, call: Call) -> None:
    run = imported(tmp_path, "trl-state", broken)
    code, _, err = call("import", tmp_path / "some.log", "--out", tmp_path / "runs")
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "runs" / run.name / "points.jsonl").read_text().splitlines()]
    both = '{"loss": "nan", "grad_norm": "nan"}'
    assert [line.get("non_finite") for line in lines[7:11]] == [None, '{"grad_norm": "inf"}', both, both]
    with pytest.warns(
        RunWarning, match=r"left out: grad_norm = inf in .* step 9 and 6 later; loss = nan in .* step 10 and 5 later\.$"
    ):
        (again,) = load(tmp_path / "runs")
    assert again.points.select(run.points.columns).equals(run.points)
    (item,) = import_logs(tmp_path / "runs")
    (folder,) = write_runs([item], tmp_path / "second")  # type: ignore[arg-type]  # a list is as good as what import gives
    assert (folder / "points.jsonl").read_bytes() == (tmp_path / "runs" / run.name / "points.jsonl").read_bytes()


def test_import_reports_the_first_non_finite_step(tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    path.write_text(trl_state(broken))
    (item,) = import_logs(path)
    assert "grad_norm is inf at step 9, no longer finite" in item.notes
    assert "loss is nan at step 10, no longer finite" in item.notes


def test_a_reward_that_breaks_leaves_a_law_the_points_before(tmp_path: Path, call: Call) -> None:
    def change(step: int) -> dict[str, Any]:
        return {"reward": NAN} if step > 12 else {}

    run = imported(tmp_path, "trl-state", change)
    assert run.points["train/avg"].count() == 12
    result = call("forecast", tmp_path / "some.log", "--metric", "train/avg", "--json")
    assert result.code == 0
    assert result.json["fitted_points"] <= 12
    assert "left out: train/avg = nan in run" in result.err


@pytest.mark.parametrize("change", [broken, unmeasured])
def test_a_callback_writes_what_an_import_reads(tmp_path: Path, change: Change) -> None:
    live = LiveRun(tmp_path / "live", engine="trl", config={})
    for step in range(1, 16):
        live.log(step, {k: v for k, v in (made.trl_row(step) | change(step)).items() if k != "epoch"})
    live.close()
    run = imported(tmp_path, "trl-state", change)
    lines = [json.loads(line) for line in (tmp_path / "live" / "points.jsonl").read_text().splitlines()]
    marks = run.points["non_finite"].to_list() if "non_finite" in run.points.columns else [None] * 15
    assert [line.get("non_finite") for line in lines] == marks


def test_a_metric_that_is_never_a_number_takes_no_other_metrics_name(tmp_path: Path) -> None:
    rows = [{"step": s, "reward": NAN, "train/accuracy": 0.01 * s, "loss": 0.5} for s in range(1, 9)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (item,) = import_logs(path)
    assert item.run.points["train/avg"].to_list() == [row["train/accuracy"] for row in rows]


def nothing_finite(step: int) -> dict[str, Any]:
    """All that is logged turns NaN at step 9."""
    return {"loss": NAN if step > 8 else 1 / step, "reward": NAN if step > 8 else 0.1 * step}


def test_a_row_with_nothing_finite_is_a_point_if_a_metric_just_broke(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": s} | nothing_finite(s)) + "\n" for s in range(1, 20)))
    (item,) = import_logs(path)
    assert item.run.points["step"].to_list() == list(range(1, 20))
    assert "loss is nan at step 9, no longer finite" in item.notes
    code, out, _ = call("health", path, "--json")
    (found,) = (f for f in json.loads(out)["runs"][0]["findings"] if f["code"] == "non_finite")
    assert (code, found["since_step"]) == (1, 9)


def test_rows_that_measured_nothing_are_no_points(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": NAN if s < 4 else 0.5, "reward": NAN if s < 4 else 0.1 * s} for s in range(1, 12)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (item,) = import_logs(path)
    assert (item.run.points["step"].to_list(), item.skipped_lines) == (list(range(4, 12)), 3)
    assert "non_finite" not in item.run.points.columns
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    with pytest.raises(InputError, match="no points"):
        import_logs(path)


@pytest.mark.parametrize(("first", "steps"), [(9, range(1, 16)), (4, range(1, 4))])
def test_a_callback_writes_a_row_with_nothing_finite(tmp_path: Path, first: int, steps: range) -> None:
    with pytest.warns(RunWarning, match="loss = nan") if first > 5 else nullcontext():
        live = LiveRun(tmp_path / "live", engine="trl", config={})
        for step in range(1, 16):
            live.log(step, {"loss": NAN if step >= first else 0.5})
        live.close()
        (run,) = load(tmp_path / "live")
    assert run.points["step"].to_list() == list(steps)


def tinker(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("order", [1, -1])
def test_nan_for_what_the_other_row_measures_is_no_repeat(tmp_path: Path, order: int) -> None:
    rows = []
    for s in range(1, 9):
        train = {"step": s, "progress/batch": s, "env/all/reward/total": 0.1 * s, "optim/kl": 0.01, "test/acc": NAN}
        held_out = {"step": s, "env/all/reward/total": NAN, "optim/kl": NAN, "test/acc": 0.05 * s}
        rows += [train, held_out][::order]
    (item,) = import_logs(tinker(tmp_path, rows))
    assert (item.replaced, item.run.points.height) == (0, 8)
    assert item.run.points.select("train/avg", "optim/kl", "avg@1").null_count().row(0) == (0, 0, 0)
    assert not any("no longer finite" in note for note in item.notes)


def test_a_resumed_run_that_breaks_is_still_a_repeat(tmp_path: Path) -> None:
    """The later row of step 8 says nothing that the first does not."""
    rows = [{"step": s, "env/all/reward/total": 0.1 * s, "optim/kl": 0.01, "loss": 0.1} for s in range(1, 9)]
    rows += [{"step": 8, "env/all/reward/total": 0.8, "optim/kl": NAN, "loss": NAN}]
    (item,) = import_logs(tinker(tmp_path, rows))
    assert item.replaced == 1
    assert item.run.points["optim/kl"].to_list()[-1] is None
    assert [note for note in item.notes if "no longer finite" in note] != []


def test_an_evaluation_that_breaks_in_a_row_of_its_own_is_seen(tmp_path: Path) -> None:
    rows = []
    for s in range(1, 10):
        rows += [{"step": s, "env/all/reward/total": 0.1 * s, "optim/kl": 0.01}]
        rows += [{"step": s, "test/acc": 0.05 * s if s < 9 else NAN}]
    (item,) = import_logs(tinker(tmp_path, rows))
    assert item.replaced == 0
    assert any(note.startswith("avg@1 is nan at step 9") for note in item.notes)
