"""`tokens` counts tokens of responses, even if a trainer's own total includes prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from isocompute.data.counters import TOKENS_WITH_PROMPTS, with_tokens
from isocompute.data.importing import Imported, import_logs
from isocompute.planner.cost.throughput import timed_intervals
from tests.data import made_up as made

BATCH = {"problems_per_batch": 16, "rollouts_per_problem": 8}


def imported(folder: Path, text: str, **known: int) -> Imported:
    (folder / "log").write_text(text)
    (item,) = import_logs(folder / "log", **known)
    return item


def verl(*, left_out: tuple[str, ...] = (), **more: Any) -> str:
    """A veRL log of 128 rollouts a step, 40,960 tokens with prompts, 512.25 to a response."""
    rows = [{k: v for k, v in (made.verl_pairs(s) | more).items() if k not in left_out} for s in range(1, 11)]
    return "".join(json.dumps({"step": s, "data": row}) + "\n" for s, row in enumerate(rows, start=1))


def points(**columns: list[float | None]) -> pl.DataFrame:
    return pl.DataFrame({"step": list(range(1, 1 + len(columns["rollouts"]))), **columns})


def test_tokens_come_from_the_response_length(tmp_path: Path) -> None:
    item = imported(tmp_path, verl(), **BATCH)
    assert item.run.points["tokens"].to_list() == pytest.approx([128 * 512.25 * s for s in range(1, 11)])
    assert item.run.points[TOKENS_WITH_PROMPTS].to_list() == pytest.approx([40960.0 * s for s in range(1, 11)])
    assert item.run.points.columns[:4] == ["step", "rollouts", "tokens", "seconds"]
    assert not any(TOKENS_WITH_PROMPTS in note for note in item.notes)


def test_tokens_of_a_log_of_every_fifth_step(tmp_path: Path) -> None:
    item = imported(tmp_path, made.trl_state(), **BATCH)
    assert item.run.points["tokens"].to_list() == pytest.approx([128 * 200.5 * s for s in range(5, 55, 5)])


def test_a_total_with_prompts_is_not_taken_for_tokens_of_responses(tmp_path: Path) -> None:
    item = imported(tmp_path, made.trl_state())
    assert "tokens" not in item.run.points.columns
    assert TOKENS_WITH_PROMPTS in item.run.points.columns
    assert any(TOKENS_WITH_PROMPTS in note and "unknown" in note for note in item.notes)


def test_prompts_are_subtracted_from_a_total_if_their_length_is_logged(tmp_path: Path) -> None:
    item = imported(tmp_path, verl(**{"prompt_length/mean": 512.25 / 3}))
    assert item.run.settings.problems_per_batch is None
    assert item.run.points["tokens"].to_list() == pytest.approx([0.75 * 40960 * s for s in range(1, 11)])


def test_a_total_with_prompts_is_no_response_length_of_timed_intervals(tmp_path: Path) -> None:
    item = imported(tmp_path, verl(left_out=("response_length/mean",)), **BATCH)
    assert {stretch.response_tokens for stretch in timed_intervals(item.run)} == {None}
    known = imported(tmp_path, verl(), **BATCH)
    assert {stretch.response_tokens for stretch in timed_intervals(known.run)} == {512.25}


def test_a_column_of_trl_in_a_table_has_prompts_too(tmp_path: Path) -> None:
    rows = "".join(f"{s},{s * 9000},{s / 10}\n" for s in range(1, 6))
    (item,) = import_logs(_written(tmp_path / "table.csv", "step,num_tokens,reward\n" + rows), format="table")
    assert item.run.points[TOKENS_WITH_PROMPTS].to_list() == [9000.0 * s for s in range(1, 6)]
    assert "tokens" not in item.run.points.columns


def test_tokens_of_our_own_name_stay(tmp_path: Path) -> None:
    rows = "".join(f"{s},{s * 70},{s * 10},50,{s / 10}\n" for s in range(1, 6))
    text = "step,tokens,rollouts,response_length,reward\n" + rows
    (item,) = import_logs(_written(tmp_path / "table.csv", text), format="table")
    assert item.run.points["tokens"].to_list() == [70.0 * s for s in range(1, 6)]


def test_rows_without_a_length_are_interpolated() -> None:
    made_of, notes = with_tokens(
        points(rollouts=[0.0, 10.0, 20.0, 30.0, 40.0], response_length=[None, 5.0, None, 7.0, None])
    )
    assert made_of["tokens"].to_list() == [0.0, 50.0, 120.0, 190.0, None]
    assert notes == []


def test_a_log_that_begins_in_the_middle_does_not_know_its_tokens() -> None:
    begun = points(rollouts=[1000.0, 1010.0, 1020.0], response_length=[5.0, 5.0, 5.0])
    assert "tokens" not in with_tokens(begun)[0].columns
    assert with_tokens(begun.with_columns(pl.lit(9.0).alias(TOKENS_WITH_PROMPTS)))[1]


def test_a_decreasing_count_of_rollouts_gives_no_tokens() -> None:
    assert "tokens" not in with_tokens(points(rollouts=[10.0, 5.0], response_length=[5.0, 5.0]))[0].columns


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
