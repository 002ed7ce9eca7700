"""Files of pass rates: formats that are read, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.data.pass_rates import read_base_rates


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rates.csv", "pass_rate\n0.1\n0.5\n1\n"),
        ("rates.tsv", "id\tpass_rate\n1\t0.1\n2\t0.5\n3\t1\n"),
        ("rates.jsonl", '{"pass_rate": 0.1}\n{"pass_rate": 0.5}\n{"pass_rate": 1}\n'),
        ("rates.json", "[0.1, 0.5, 1]"),
        ("rates.txt", "0.1\n0.5\n\n1\n"),
    ],
)
def test_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_base_rates(str(tmp_path / name)).tolist() == [0.1, 0.5, 1.0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bare.csv", "0.1\n0.5\n0.9\n", r"the first line, '0\.1', is a number .* put pass_rate above it, .* \.txt"),
        ("named.csv", "q1,.5\nq2,.6\n", r"the first line, '\.5', is a number"),
        ("odd.csv", "pass_rate\n.1\n.9\n1.5\n", r"row 3 of 'pass_rate' is 1\.5, outside \[0, 1\]; fix or delete it"),
        ("percent.csv", "pass_rate\n10\n90\n.5\n", r"row 1 .* is 10, outside \[0, 1\]; these look like percent"),
        ("minus.txt", "0.5\n-0.1\n", r"row 2 of 'pass_rate' is -0\.1, outside \[0, 1\]; fix"),
        ("nan.csv", "pass_rate\n50\nNaN\n60\n", r"outside \[0, 1\]; fix"),
        ("words.txt", "0.5\nhalf\n", "row 2 of 'pass_rate' is not a number"),
        ("word.txt", "half\n", "row 1 of 'pass_rate' is not a number"),
        ("count.csv", "correct,samples\nmany,4\n2,4\n", "row 1 of 'correct / samples' is not a number"),
        ("counts.jsonl", '{"correct": [1], "samples": [2]}\n', "'correct' holds lists, not numbers"),
        ("long.json", f"[{'9' * 400}]", "not a readable json file"),
        ("word.csv", "id,pass_rate\na,0.5\nb,half\n", "row 2 of 'pass_rate' is not a number"),
        ("header.csv", "pass_rate\n", "the table has no rows; write the pass rate of every problem"),
        ("blank.csv", "pass_rate\n\n", "the table has no rows; write the pass rate of every problem"),
        ("blanks.csv", "id,pass_rate\n,\n,\n", "the table has no rows"),
        ("text.csv", "question,answer\na,b\n", "no column holds numbers; there are question, answer: write pass rates"),
        ("several.csv", "a,b\n.5,.5\n", "which column holds pass rates\\? Say --pass-rate-column with one of a, b"),
        ("empty.txt", "", "the table has no rows"),
        ("empty.json", "[]", "the table has no rows"),
        ("object.json", '{"a": 0.5}', "it is not a list of numbers; write a table as .jsonl"),
        ("null.json", "[0.5, null]", "it is not a list of numbers"),
        ("true.json", "[0.5, true]", "it is not a list of numbers"),
        ("broken.json", "[0.5", "not a readable json file"),
        ("rates.xlsx", "0.5", r"pass rates are read from \.csv, \.tsv, \.jsonl, \.parquet, \.json or \.txt"),
    ],
)
def test_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says):
        read_base_rates(str(tmp_path / name))


def test_a_blank_table_is_said_before_its_column(tmp_path: Path) -> None:
    (tmp_path / "blank.csv").write_text("rate,id\n,\n")
    with pytest.raises(InputError, match="the table has no rows"):
        read_base_rates(str(tmp_path / "blank.csv"), column="rate")


def test_a_column_named_by_a_number_is_read_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "series.csv").write_text(",0\n0,0.25\n1,0.75\n")  # what pandas writes of a series without a name
    assert read_base_rates(str(tmp_path / "series.csv"), column="0").tolist() == [0.25, 0.75]


def test_a_column_of_exactly_that_name_goes_before_a_field_of_a_struct(tmp_path: Path) -> None:
    path = tmp_path / "rates.jsonl"
    path.write_text('{"extra_info": {"rate": 0.1}, "rate": 0.9}\n{"extra_info": {"rate": 0.2}, "rate": 0.8}\n')
    assert read_base_rates(str(path), column="rate").tolist() == [0.9, 0.8]
    assert read_base_rates(str(path), column="extra_info.rate").tolist() == [0.1, 0.2]


def test_a_field_of_one_struct_is_found_and_of_several_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.jsonl"
    path.write_text('{"extra_info": {"rate": 0.1}, "id": 1}\n')
    assert read_base_rates(str(path), column="rate").tolist() == [0.1]
    path.write_text('{"extra_info": {"rate": 0.1}, "other": {"rate": 0.2}}\n')
    with pytest.raises(InputError, match=r"several fields are named 'rate'; .* one of extra_info\.rate, other\.rate"):
        read_base_rates(str(path), column="rate")
    with pytest.raises(InputError, match=r"no column 'none'; there are extra_info\.rate, other\.rate"):
        read_base_rates(str(path), column="none")


def test_a_column_of_lists_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "lists.jsonl").write_text('{"rates": [0.5, 1]}\n{"rates": [1]}\n')
    with pytest.raises(InputError, match="'rates' holds lists, not numbers; write one number per row"):
        read_base_rates(str(tmp_path / "lists.jsonl"), column="rates")
