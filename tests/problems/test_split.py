"""`isocompute split` from its arguments to the files it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import isocompute
from isocompute.cli.main import app
from isocompute.core.errors import InputError
from isocompute.problems import ProblemWarning, load_problems


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `problems.jsonl` (pass rates in it) and `counts.csv`; do not write into it."""
    folder = tmp_path_factory.mktemp("split")
    rng = np.random.default_rng(0)
    rate_P = np.where(rng.random(600) < 0.4, rng.beta(0.5, 20, 600), rng.beta(2, 2, 600))
    correct_P = rng.binomial(16, rate_P)
    with (folder / "problems.jsonl").open("w") as file:
        for i, correct in enumerate(correct_P):
            row = {"id": f"p{i}", "question": f"{i} + 1 = ?", "answer": str(i + 1), "rate": round(correct / 16, 3)}
            file.write(json.dumps(row | {"messages": [{"role": "user", "content": f"Say {i} + 1."}]}) + "\n")
    lines = [f"p{i},{correct},16" for i, correct in enumerate(correct_P)]
    (folder / "counts.csv").write_text("\n".join(["id,correct,samples", *lines[::-1]]) + "\n")
    return folder


def run(*args: object) -> Any:
    result = CliRunner().invoke(app, ["split", *map(str, args)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_json_and_files(counted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shared = (counted / "problems.jsonl", "--counts", counted / "counts.csv", "--seed", 1)
    result = run(*shared, "--out", out, "--mix", "easy=.5,hard=.5", "--mix-size", 40, "--json")
    data = json.loads(result.output)
    assert json.loads((out / "difficulty.json").read_text()) == data
    assert (data["problems"], data["samples"], data["mixture"]) == (600, [16], {"size": 40})
    assert set(data["subsets"]) == {"easy", "hard", "very-easy", "extremely-hard"}
    for subset in data["subsets"].values():
        for found in (subset["naive"], subset["corrected"]):
            if found["size"]:
                assert found["interval"][0] <= found["corrected_mean"] <= found["interval"][1]
                assert 0 <= found["in_band"] <= 1
    hard = data["subsets"]["hard"]
    assert hard["naive"]["corrected_mean"] > hard["naive"]["naive_mean"]
    assert hard["corrected"]["corrected_mean"] <= 0.0625
    assert sum(data["distribution"]["weight"]) == pytest.approx(1, abs=1e-4)
    assert sum(row["problems"] for row in data["posterior"]) == 600
    easy = load_problems(str(out / "easy.jsonl"))
    assert len(easy) == data["subsets"]["easy"]["corrected"]["size"]
    original = {p.id: p for p in load_problems(str(counted / "problems.jsonl")).problems}
    corrected = {(row["naive"], round(row["corrected"], 6)) for row in data["posterior"]}
    for line, problem in zip((out / "easy.jsonl").read_text().splitlines(), easy.problems, strict=True):
        row = json.loads(line)
        assert (row["pass_rate"], row["pass_rate_corrected"]) in corrected
        assert 0.3 <= row["pass_rate_corrected"] <= 0.6
        assert problem.messages == ({"role": "user", "content": f"Say {problem.id[1:]} + 1."},)
        assert (problem.question, problem.answer) == (original[problem.id].question, original[problem.id].answer)
        assert problem.extra["rate"] == original[problem.id].extra["rate"]  # a column for reward functions
    mixed = load_problems(str(out / "mixture.jsonl"))
    assert len({p.id for p in mixed.problems} & {p.id for p in easy.problems}) == 20
    assert not (out / "extremely-hard.jsonl").exists() or data["subsets"]["extremely-hard"]["corrected"]["size"]
    assert not list(out.glob(".*"))


def test_the_three_ways_to_counts_agree(counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(line.split(",")[:2] for line in (counted / "counts.csv").read_text().splitlines()[1:])
    asked, seen = {}, []

    def measure_pass_rates(*, on_step: Callable[[int, int], None], **settings: Any) -> tuple[list[str], Any]:
        asked.update(settings)
        on_step(3, 600)
        return list(rows), np.array([int(count) for count in rows.values()])

    engine = ModuleType("isocompute.rl.evaluation")
    vars(engine)["measure_pass_rates"] = measure_pass_rates
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    source = str(counted / "problems.jsonl")
    by_question = tmp_path / "by_question.jsonl"
    by_question.write_text(
        "\n".join(json.dumps({"question": f"{i} + 1  = ?", "avg": int(rows[f"p{i}"]) / 16}) for i in range(600))
    )
    settings: dict[str, Any] = {"replicates": 5}
    found = [
        isocompute.split(source, counts=str(counted / "counts.csv"), **settings),
        isocompute.split(source, pass_rates="rate", **settings),
        isocompute.split(source, counts=str(by_question), pass_rates="avg", **settings),
        isocompute.split(source, model="base", on_progress=lambda *step: seen.append(step), **settings),
    ]
    assert len({json.dumps(split.to_json() | {"model": None}) for split in found}) == 1
    columns = dict.fromkeys(("question", "answer", "verifier"))
    assert asked == {"problems": source, "model": "base", "samples": 16, "seed": 0, "size": None, **columns}
    assert seen == [("sampling", 3, 600)]


def test_terminal(counted: Path) -> None:
    text = run(counted / "problems.jsonl", "--pass-rates", "rate", "--mix", "easy=.5,hard=.5").output
    assert "600 problems, 16 samples each" in text
    assert text.count("counts") >= 4
    assert text.count("posterior") >= 4
    assert "mixture of" in text


def test_an_older_file_does_not_stay(counted: Path, tmp_path: Path) -> None:
    (tmp_path / "extremely-hard.jsonl").write_text("old")
    made = isocompute.split(str(counted / "problems.jsonl"), pass_rates="rate", out=tmp_path, replicates=2)
    assert (tmp_path / "extremely-hard.jsonl").exists() == bool(made.subset("extremely-hard"))


def test_a_filtered_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    correct_P = rng.binomial(16, rng.beta(0.6, 0.8, 8000))
    correct_P = np.r_[correct_P[correct_P <= 9], [11, 12]]
    path = tmp_path / "a.csv"
    rows = [f"{i} + 1,{i + 1},{c / 16}" for i, c in enumerate(correct_P)]
    path.write_text("\n".join(["question,answer,pass_rate", *rows]))
    with pytest.warns(ProblemWarning, match="no distribution of pass rates gives such counts.*--kept LOW:HIGH"):
        isocompute.split(str(path), pass_rates="pass_rate", replicates=2)
    with pytest.warns(ProblemWarning, match="2 problems left out, measured outside --kept 0:0.6") as said:
        made = isocompute.split(str(path), pass_rates="pass_rate", kept=(0, 0.6), replicates=2)
    assert len(said) == 1
    assert len(made.problems) == len(correct_P) - 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "either --model"),
        (["--model", "x", "--pass-rates", "rate"], "either --model"),
        (["--pass-rates", "rates"], "no column 'rates' for the pass rate; there are id, question"),
        (["--pass-rates", "rate", "--samples", "10"], "is not a whole number of 10 samples.*--samples"),
        (["--pass-rates", "rate", "--kept", ".5"], "give a range"),
        (["--pass-rates", "rate", "--kept", "a:b"], "'a' is not a number"),
        (["--pass-rates", "rate", "--mix", "easy"], "NAME=VALUE"),
        (["--pass-rates", "rate", "--mix", "easy=much"], "'much' is not a number"),
        (["--pass-rates", "rate", "--mix-size", "5"], "give --mix too"),
        (["--pass-rates", "rate", "--mix", "easy=.5,hard=.5", "--mix-size", "2000"], "need 1000 of them"),
        (["--counts", "missing.csv"], "missing.csv: cannot be read"),
    ],
)
def test_wrong_input(counted: Path, tmp_path: Path, args: list[str], message: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(
            app, ["split", str(counted / "problems.jsonl"), *args, "--out", str(out)], catch_exceptions=False
        )
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,correct,samples\np0,1,16\n", r"no counts of 599 of 600 problems, first id 'p1'"),
        ("id,correct,samples\np0,17,16\n", "line 2: 17 correct of 16"),
        ("id,correct,samples\np0,x,16\n", "line 2: correct = 'x' is not a count"),
        ("id,correct,samples\np0,1,16\np0,1,16\n", "line 3: id 'p0' is there already"),
        ("id,correct,samples\n,1,16\n", "line 2: column 'id' is empty"),
        ("id,score\np0,1\n", "known as the pass rate"),
        ("place,correct\n1,1\n", "name it with --question COLUMN, or give the table the problems' id column"),
        ("index,correct\n1,1\n1,2\n", "name it with --question COLUMN, or give the table the problems' id column"),
    ],
)
def test_wrong_counts(counted: Path, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        isocompute.split(str(counted / "problems.jsonl"), counts=str(path), replicates=2)


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """veRL's layout: the row's number and the pass rate are nested; the counts, in another order, have both plain."""
    correct = [(7 * i) % 17 for i in range(40)]
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i} + 1 = ?"}],
            "reward_model": {"ground_truth": str(i + 1)},
            "extra_info": {"index": i + 100, "v2.5_rate": correct[i] / 16},
        }
        for i in range(40)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{i + 100},{correct[i] / 16}" for i in reversed(range(40))]
    (tmp_path / "rates.csv").write_text("\n".join(["index,v2.5_rate", *lines, "999,0.5"]) + "\n")
    return tmp_path


def test_counts_join_by_the_rows_number(numbered: Path) -> None:
    source, shared = str(numbered / "problems.jsonl"), {"replicates": 2}
    joined = isocompute.split(source, counts=str(numbered / "rates.csv"), pass_rates="v2.5_rate", **shared)
    own = isocompute.split(source, pass_rates="extra_info.v2.5_rate", **shared)
    assert joined.to_json()["posterior"] == own.to_json()["posterior"]
    assert [p.id for p in joined.problems.problems[:2]] == ["100", "101"]
    with pytest.raises(
        InputError, match=r"no column 'v2.5_rate' for the pass rate; did you mean 'extra_info.v2.5_rate'"
    ):
        isocompute.split(source, pass_rates="v2.5_rate", **shared)


def test_counts_join_by_ids_that_a_table_keeps_as_floats(tmp_path: Path) -> None:
    problems, counts = tmp_path / "problems.jsonl", tmp_path / "counts.jsonl"
    problems.write_text("".join(f'{{"id": {i}, "question": "{i} + 1", "answer": {i + 1}}}\n' for i in range(9)))
    counts.write_text("".join(f'{{"id": {i}.0, "correct": {i}, "samples": 16}}\n' for i in range(9)))
    made = isocompute.split(str(problems), counts=str(counts), replicates=2)
    assert [row["correct"] for row in made.to_json()["posterior"]] == list(range(9))


def test_a_number_that_repeats_is_no_id(numbered: Path) -> None:
    path = numbered / "problems.jsonl"
    path.write_text(path.read_text().replace('"index": 101', '"index": 100'))
    assert "100" not in {problem.id for problem in load_problems(str(path)).problems}


def test_the_question_goes_before_a_row_number(numbered: Path) -> None:
    """A table that a data frame wrote has an `index` of its own."""
    lines = [f'{39 - i},"{i} + 1 = ?",{(7 * i) % 17}' for i in reversed(range(40))]
    for name in ("question", "asked"):
        (numbered / "counts.csv").write_text("\n".join([f"index,{name},correct", *lines]) + "\n")
        path = numbered / "problems.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(r | {name: f"{i} + 1 = ?"}) + "\n" for i, r in enumerate(rows)))
        made = isocompute.split(str(path), counts=str(numbered / "counts.csv"), question=name, replicates=2)
        own = isocompute.split(str(path), pass_rates="extra_info.v2.5_rate", replicates=2)
        assert made.to_json()["posterior"] == own.to_json()["posterior"]
