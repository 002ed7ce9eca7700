"""Every layout a problem file comes in, and what is said about those that cannot be read."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isocompute.core.errors import InputError
from isocompute.problems import ProblemWarning, load_problems
from isocompute.problems.problem_set import draw

GSM8K = {"question": "Tom has 3 bags of 4 apples. How many?", "answer": "3 * 4 = <<3*4=12>>12\n#### 12"}
MATH = {"problem": "Compute $1/2 + 1/3$.", "solution": r"Add them: $\boxed{\frac{5}{6}}$, as \frac{2}{3} is wrong."}


def verl(question: str, answer: Any, index: int = 0) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index, "split": "train", "model_v2.5_pass_rate": 0.25},
    }


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_gsm8k_in_every_format(tmp_path: Path, suffix: str) -> None:
    found = load_problems(write(tmp_path / f"a.{suffix}", [GSM8K, {"question": "1 + 1\n= ?", "answer": "2"}]))
    assert [p.answer for p in found.problems] == ["12", "2"]
    assert found.problems[1].question == "1 + 1\n= ?"
    assert found.problems[0].messages is None


def test_math_solution(tmp_path: Path) -> None:
    (problem,) = load_problems(write(tmp_path / "a.jsonl", [MATH])).problems
    assert (problem.question, problem.answer) == (MATH["problem"], r"\frac{5}{6}")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_verl_layout(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.{suffix}", [verl("1 + 1?", "2"), verl("1 + 2?", "3", 1)])
    found = load_problems(path, pass_rate="extra_info.model_v2.5_pass_rate")
    first = found.problems[0]
    assert (first.question, first.answer, first.source, first.pass_rate) == ("1 + 1?", "2", "openai/gsm8k", 0.25)
    assert first.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"})


def test_named_columns_and_ids(tmp_path: Path) -> None:
    rows = [{"Frage": f"{i} + 1", "Antwort": i + 1.0, "id": 7 + i, "pass_rate": i / 4} for i in range(3)]
    found = load_problems(write(tmp_path / "a.parquet", rows), question="Frage", answer="Antwort")
    assert [(p.id, p.answer, p.pass_rate) for p in found.problems] == [("7", "1", 0), ("8", "2", 0.25), ("9", "3", 0.5)]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_other_columns_are_kept(tmp_path: Path, suffix: str) -> None:
    rows = [verl("1 + 1?", "2") | {"level": math.nan}, verl("1 + 2?", "3", 1) | {"level": 2.0}]
    first, second = load_problems(write(tmp_path / f"a.{suffix}", rows)).problems
    assert first.extra == {name: rows[0][name] for name in rows[0] if name != "prompt"} | {"level": None}
    assert (second.extra["level"], second.extra["extra_info"]["index"]) == (2.0, 1)
    assert first == replace(first, extra={})


def test_other_columns_have_values_of_json(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1", "answer": str(i + 1), "day": date(2026, 1, 1), "raw": b"1"} for i in range(2)]
    assert [p.extra for p in load_problems(write(tmp_path / "a.parquet", rows)).problems] == [{}, {}]
    lines = ['{"question": "1", "answer": "1", "level": 3, "half": "\\ud800"}', '{"question": "2", "answer": "2"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert [p.extra for p in load_problems(str(tmp_path / "a.jsonl")).problems] == [{"level": 3}, {"level": None}]
    (tmp_path / "a.csv").write_text("question,answer,level\n1,1,3,surplus\n2,2\n")
    assert [p.extra for p in load_problems(str(tmp_path / "a.csv")).problems] == [{"level": "3"}, {"level": None}]


def test_ids_do_not_depend_on_the_file(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1", "answer": str(i + 1)} for i in range(5)]
    a = load_problems(write(tmp_path / "a.jsonl", rows))
    b = load_problems(write(tmp_path / "b.csv", rows[::-1]))
    assert {p.id for p in a.problems} == {p.id for p in b.problems}


def test_duplicates_are_dropped_and_said(tmp_path: Path) -> None:
    rows = [{"question": q, "answer": a} for q, a in (("1 + 1", "2"), ("1  + 1", "2"), ("1 + 1", "3"), ("2", "2"))]
    with pytest.warns(ProblemWarning, match="2 repeated questions dropped, 1 of them with another answer"):
        found = load_problems(write(tmp_path / "a.jsonl", rows))
    assert ([p.answer for p in found.problems], found.duplicates) == (["2", "2"], 2)


def test_size_is_nested_and_deterministic(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1", "answer": str(i + 1)} for i in range(50)]
    path = write(tmp_path / "a.jsonl", rows)
    small, large = load_problems(path, size=10), load_problems(path, size=20)
    assert len(small) == 10
    assert set(small.problems) < set(large.problems)
    assert small.problems == load_problems(path, size=10).problems != load_problems(path, size=10, seed=1).problems
    whole = load_problems(path).problems
    assert set(draw(whole[::-1], 10, seed=0)) == set(small.problems)
    with pytest.raises(InputError, match="has 50 different problems, not 51"):
        load_problems(path, size=51)


def test_a_few_gaps_are_left_out(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1", "answer": "" if i == 7 else str(i + 1)} for i in range(200)]
    with pytest.warns(ProblemWarning, match=r"1 of 200 rows have no answer in 'answer', first .*line 15"):
        assert len(load_problems(write(tmp_path / "a.jsonl", rows))) == 199


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("gap", [math.nan, [math.nan], [None]])
def test_nan_is_a_gap(tmp_path: Path, suffix: str, gap: Any) -> None:
    answers = [[i + 1.0] if isinstance(gap, list) else i + 1.0 for i in range(200)]
    rows = [{"question": f"{i} + 1", "answer": answer} for i, answer in enumerate(answers)]
    rows[7]["answer"] = gap
    with pytest.warns(ProblemWarning, match=r"1 of 200 rows have no answer in 'answer', first .*(line 15|row 8)"):
        found = load_problems(write(tmp_path / f"a.{suffix}", rows))
    assert [p.answer for p in found.problems[5:8]] == ["6", "7", "9"]
    with pytest.raises(InputError, match=r"(line 1|row 1): column 'answer' has no answer, one of 1 such rows of 3"):
        load_problems(write(tmp_path / f"b.{suffix}", rows[7:10]))


def test_numbers_and_gaps_in_other_columns(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1", "answer": i + 0.5, "id": i + 1.0, "pass_rate": i / 4} for i in range(3)]
    rows[1] |= {"id": math.nan, "pass_rate": math.nan}
    first, second, _ = load_problems(write(tmp_path / "a.parquet", rows)).problems
    assert (first.id, first.answer, first.pass_rate) == ("1", "0.5", 0)
    assert (len(second.id), second.answer, second.pass_rate) == (16, "1.5", None)


def test_messages_in_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "1 + 1"}, {"type": "text", "text": " = ?"}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": None}], "answer": "2"}
    (problem,) = load_problems(write(tmp_path / "a.jsonl", [row])).problems
    assert problem.question == "1 + 1 = ?"
    assert problem.messages == ({"role": "user", "content": "1 + 1 = ?"},)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"question": "1", "answer": "1"}\n{"question": "2", "answer": null}\n', "line 2: column 'answer'"),
        ("a.jsonl", '{"question": "1", "answer": "1"}\n{"question": "", "answer": "1"}\n', "line 2: column 'question'"),
        ("a.jsonl", '{"question": "1", "answer": "1"}\n{"question"', r"line 2: not JSON \("),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", "\n", "has no rows"),
        ("a.json", '{"question": "1"}', "not a list of problems"),
        ("a.json", "{", "not JSON"),
        ("a.csv", "question,reply\n1,2\n", "known as the answer.*--answer COLUMN. There are question, reply"),
        ("a.csv", "text,answer\n1,2\n", "known as the question"),
        ("a.csv", 'question,answer\n"1,2\n', "not CSV"),
        ("a.csv", "question,answer,pass_rate\n1,2,1.5\n", "line 2: pass_rate = '1.5' is not a pass rate"),
        ("a.parquet", "no parquet", "cannot be read as parquet"),
        ("a.txt", "x", "not a problem file"),
        ("a.jsonl", '{"id": 1, "question": "1", "answer": 1}\n{"id": 1, "question": "2", "answer": 1}\n', "id '1'"),
        ("a.jsonl", '{"prompt": [{"role": "x"}], "answer": 1}\n', "not of messages"),
        ("a.jsonl", '{"prompt": [{"role": "system", "content": "x"}], "answer": 1}\n', "no message of the user"),
        ("a.jsonl", '{"question": "x", "answer": ["1", "2"]}\n', "has 2 answers"),
        ("a.jsonl", f'{{"question": "x", "answer": {"1" * 5000}}}\n', "line 1: a whole number of over 4,300 digits"),
        ("a.json", f'[{{"question": "x", "answer": {"1" * 5000}}}]', "a whole number of over 4,300 digits"),
        ("a.jsonl", '\n{"question": "q \\ud800", "answer": 1}\n', r"line 2: column 'question' has half of .* \\ud800"),
        ("a.jsonl", '{"question": "q", "answer": "\\udfff"}\n', "line 1: column 'answer' has half of a character"),
        ("a.json", '[{"question": "q", "answer": 1, "id": "\\ud800"}]', "item 1: column 'id' has half of a character"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": "\\ud800"}], "answer": 1}\n', "'prompt' has half of a"),
        (
            "a.jsonl",
            '{"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "answer": 1}\n',
            "line 1: column 'prompt' has a message with a part of type 'image_url'",
        ),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": ["x"]}], "answer": 1}\n', "with a part of type 'str'"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": null}], "answer": 1}\n', "a message that says nothing"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_problems(str(path))
    assert str(path) in str(caught.value)


def test_wrong_requests(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [GSM8K])
    with pytest.raises(InputError, match="no such file"):
        load_problems(str(tmp_path / "b.jsonl"))
    with pytest.raises(InputError, match="no column 'q' for the question; there are question, answer"):
        load_problems(path, question="q")
    with pytest.raises(InputError, match="no verifier is named 'judge'"):
        load_problems(path, verifier="judge")
    with pytest.raises(InputError, match="at least one"):
        load_problems(path, size=0)
    (tmp_path / "latin.csv").write_bytes("question,answer\né,1\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        load_problems(str(tmp_path / "latin.csv"))


def test_datasets_folder(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", [{"question": "1 + 1", "answer": "2"}])
    write(folder / "test.jsonl", [{"question": "1 + 2", "answer": "3"}, {"question": "1 + 3", "answer": "4"}])
    # In a process of its own: the library keeps files and locks open, and reads its settings when it is imported.
    code = textwrap.dedent("""
        import sys
        from isocompute.core.errors import InputError
        from isocompute.problems import load_problems
        for source in sys.argv[1:]:
            try:
                print([p.answer for p in load_problems(source, verifier="exact").problems])
            except InputError as error:
                print(str(error).replace(chr(10), " ")[:400])
    """)
    sources = [f"hf:{folder}", f"hf:{folder}:test", f"hf:{folder}:default:test", f"hf:{folder}:dev", "hf:a:b:c:d"]
    environment = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *sources], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["['2']", "['3', '4']", "['3', '4']"]
    assert "datasets cannot load it" in lines[3]
    assert "write hf:NAME" in lines[4]


def test_chain_source() -> None:
    found = load_problems("chain:1-2", size=20, seed=1)
    assert len(found) == 20
    problem = found.problems[0]
    assert found.verify(problem, problem.answer) == 1.0
    with pytest.raises(InputError, match="this source has its own"):
        load_problems("chain:easy", verifier="math")


@pytest.mark.parametrize(
    ("source", "size", "message"),
    [
        ("chain:1-99999999", None, "steps 1-99999999; give at most 1,000"),
        ("chain:1-" + "9" * 5000, None, "nor a range of steps"),
        ("chain:easy?modulus=" + "9" * 5000, None, "is not an option of chain"),
        ("chain:easy?modulus=1000000007", None, "modulus 1000000007 is above 65,536"),
        ("chain:easy", 10**10, "10,000,000,000 problems of up to 5 steps are too many to draw"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_chains_that_are_too_large(source: str, size: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_problems(source, size=size)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, pkgutil, importlib, isocompute.problems as p\n"
        "for m in pkgutil.iter_modules(p.__path__): importlib.import_module('isocompute.problems.' + m.name)\n"
        "print(sorted({'torch','polars','pyarrow','datasets','math_verify','reasoning_gym'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
