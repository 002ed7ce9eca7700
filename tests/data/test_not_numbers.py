"""Non-finite values: stored in a column of their own and read back under the metric's name."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from isocompute.core.recorder import RunSettings
from isocompute.core.run import LARGEST, NonFiniteWarning, Run, mark_non_finite, marks_as_json, non_finite
from isocompute.data import load

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name", ["a, loss", "loss=nan, kl", 'say "loss"', "back\\", "{loss}", "a: b", "Verlust ä"])
def test_a_name_is_read_back_whatever_is_in_it(name: str) -> None:
    points = mark_non_finite(pl.DataFrame({"step": [1, 2], name: [0.5, NAN], "loss": [1.0, 2.0], "kl": [0.1, 0.2]}))
    assert json.loads(points["non_finite"][1]) == {name: "nan"}
    assert points["non_finite"][1] == marks_as_json({name: NAN}) or not name.isascii()
    assert {key: (mark.row, mark.rows) for key, mark in non_finite(points).items()} == {name: (1, 1)}


def test_first_row_value_and_number_of_each() -> None:
    table = {"a": [0.1, INF, NAN, NAN], "b": [0.1, 0.2, NAN, NAN], "c": [-1e120, LARGEST, None, 1.0]}
    points = mark_non_finite(pl.DataFrame(table))
    assert points["c"].to_list() == [None, LARGEST, None, 1.0]
    found = {name: (mark.row, str(mark.value), mark.rows) for name, mark in non_finite(points).items()}
    assert found == {"c": (0, "-1e+120", 1), "a": (1, "inf", 3), "b": (2, "nan", 2)}


def test_earlier_marks_stay_and_other_text_is_no_mark() -> None:
    table = {"loss": [NAN, NAN, 1.0, NAN], "non_finite": ['{"kl": "inf"}', "{}", "kl=nan", None]}
    points = mark_non_finite(pl.DataFrame(table))
    both = '{"kl": "inf", "loss": "nan"}'
    assert points["non_finite"].to_list() == [both, '{"loss": "nan"}', "kl=nan", '{"loss": "nan"}']
    assert {name: mark.rows for name, mark in non_finite(points).items()} == {"kl": 1, "loss": 3}


@pytest.mark.parametrize("cell", ["7", "[1]", '"text"', '{"a": 1}', '{"a": "b"}', '{"a": "0.5"}', "[" * 100_000])
def test_other_text_in_the_column_marks_nothing(cell: str) -> None:
    assert non_finite(pl.DataFrame({"a": [1.0], "non_finite": [cell]})) == {}


def test_a_metric_that_was_never_a_number_is_still_one() -> None:
    points = mark_non_finite(
        pl.DataFrame({"step": [1, 2], "loss": [NAN, NAN], "kl": pl.Series([None, None], dtype=pl.Float64)})
    )
    assert Run("a", RunSettings(), points).metrics == ["loss"]


def test_a_run_folder_with_marks_is_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The colon in a mark is no key that the fast reader lost; a key that it lost is still noticed."""
    lines = [{"step": s, "loss": 0.5} for s in range(150)] + [{"step": 150, "non_finite": marks_as_json({"loss": NAN})}]
    marked = [{"step": 0, "non_finite": marks_as_json({"kl": INF})}, *lines[1:]]
    read: list[int | None] = []
    whole = pl.read_ndjson

    def counted(source: object, *, infer_schema_length: int | None) -> pl.DataFrame:
        read.append(infer_schema_length)
        return whole(source, infer_schema_length=infer_schema_length)  # type: ignore[arg-type]  # bytes in a buffer

    monkeypatch.setattr(pl, "read_ndjson", counted)
    for rows, passes in ((marked, 1), (lines, 2)):
        read.clear()
        (tmp_path / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.warns(NonFiniteWarning, match="loss = nan in run"):
            load(tmp_path)
        assert len(read) == passes
