r"""Loads a `ProblemSet` from a file, a reasoning-gym task, a Hugging Face dataset or the built-in chains.

veRL keeps a chat in `prompt`, the answer in `reward_model.ground_truth`, the set's name in `data_source` and the rest
in `extra_info`. In other files, columns are found by name. If an answer column holds a worked solution that ends with
`#### 42` (GSM8K) or has a `\boxed{}` (MATH), the final answer is extracted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError
from isocompute.problems.answers import ExactVerifier, stated_answer
from isocompute.problems.chain import load_chain
from isocompute.problems.graders import MathVerifier, load_gym, parse_gym, require
from isocompute.problems.problem_set import (
    Problem,
    ProblemSet,
    ProblemWarning,
    Verifier,
    draw,
    question_key,
    without_duplicates,
)
from isocompute.problems.reward import REWARD_SECONDS, load_reward

VERIFIERS = ("math", "exact")
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
QUESTIONS = ("question", "problem", "prompt", "input", "instruction", "messages", "query")
ANSWERS = (
    "answer",
    "reward_model.ground_truth",
    "ground_truth",
    "target",
    "final_answer",
    "expected_answer",
    "gold",
    "label",
    "solution",
    "output",
)
IDS = ("id", "problem_id", "question_id", "unique_id", "uid", "uuid", "extra_info.id")
INDEXES = ("index", "extra_info.index")
"""Used as ids only if they are unique: veRL numbers the rows of each set from 0, and a file may have several sets."""
SOURCES = ("source", "data_source", "dataset")
RATES = ("pass_rate",)
_OPTIONS = {"question": "--question", "answer": "--answer", "pass rate": "--pass-rates"}
_MISSING_SHARE = 0.01
"""A larger share of rows without an answer is an error; MATH's training set has 2 in 7,500."""
_LONGEST_FIELD = 2**30
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")


def load_problems(
    source: str,
    *,
    size: int | None = None,
    seed: int = 0,
    question: str | None = None,
    answer: str | None = None,
    verifier: str | None = None,
    pass_rate: str | None = None,
    reward: str | None = None,
    reward_seconds: float = REWARD_SECONDS,
) -> ProblemSet:
    """Read or generate a problem set.

    `source` is a path to a .jsonl, .json, .csv or .parquet file, `gym:TASK?key=value`, `hf:NAME:CONFIG:SPLIT` or
    `chain:LEVEL`. `size` selects that many problems by the hash of their question. `question`, `answer` and `pass_rate`
    name columns that are not found automatically. `verifier` is `math`, `exact` or a `gym:` source; files written by
    `isocompute split` name theirs. `reward` is a function of yours instead of a verifier: `my_rewards.py:score`.
    """
    if size is not None and size < 1:
        raise InputError(f"size = {size}: ask for at least one problem.")
    if reward is not None and verifier is not None:
        raise InputError(f"{source}: reward and verifier both say how to grade responses; leave one out.")
    kind = source.partition(":")[0]
    if kind in ("gym", "chain"):
        if verifier or question or answer or pass_rate:
            raise InputError(f"{source}: columns and verifiers are for files; this source has its own.")
        found = (load_gym if kind == "gym" else load_chain)(source, size=size, seed=seed)
    else:
        if kind != "hf" and not Path(source).exists():
            known = f"{', '.join(SUFFIXES)} file, gym:TASK, hf:NAME:CONFIG:SPLIT or chain:LEVEL"
            raise InputError(f"{source}: no such file; give a {known}.")
        rows = _read_datasets(source) if kind == "hf" else read_rows(source)
        problems = _problems(rows, path=source, question=question, answer=answer, pass_rate=pass_rate)
        unique, duplicates = without_duplicates(problems, name=source)
        if size is not None:
            if size > len(unique):
                raise InputError(f"{source}: has {len(unique)} different problems, not {size}; ask for fewer.")
            unique = draw(unique, size, seed=seed)
        grader = _verifier("exact" if reward else verifier, rows, source)
        found = ProblemSet(name=source, problems=unique, verifier=grader, duplicates=duplicates)
    if reward is None:
        return found
    columns = found.problems[0].extra
    return replace(found, verifier=load_reward(reward, source=source, columns=columns, seconds=reward_seconds))


def _verifier(name: str | None, rows: Sequence[Row], source: str) -> Verifier:
    """The verifier with this name, else the one that the rows name, else `math` or, without math-verify, `exact`."""
    if name is None:
        named = {str(found) for row in rows if (found := row.get("verifier"))}
        if len(named) > 1:
            raise InputError(
                f"{source}: its rows name {len(named)} verifiers ({', '.join(sorted(named)[:3])}); name one."
            )
        name = named.pop() if named else None
    if name is None and find_spec("math_verify") is None:
        warnings.warn(
            f"{source}: math-verify is not installed, so answers are compared as text and numbers "
            "(pip install 'isocompute[problems]', or verifier='exact').",
            ProblemWarning,
            stacklevel=3,
        )
        name = "exact"
    if name == "exact":
        return ExactVerifier()
    if name is None or name == "math":
        require("math_verify", what="verifier 'math'")
        return MathVerifier()
    if name.startswith("gym:"):
        require("reasoning_gym", what=name)
        return parse_gym(name)
    raise InputError(f"{source}: no verifier is named '{name}'; there are {', '.join(VERIFIERS)} and gym:TASK.")


# Rows of a file


@dataclass(frozen=True)
class Row:
    """A row of a problem file."""

    place: str
    """Its location for error messages, such as `train.jsonl, line 3`."""
    values: Mapping[str, Any]

    def get(self, name: str | None) -> Any:
        """The value of a column, or of `outer.inner` in a nested one; None if empty. Column names may contain dots."""
        return None if name is None else _lookup(self.values, name)


def _lookup(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return _filled(values[name])
    for cut in range(len(name)):
        if name[cut] == "." and isinstance(inner := values.get(name[:cut]), Mapping):
            return _lookup(inner, name[cut + 1 :])
    return None


def _filled(value: Any) -> Any:
    """The value; None if it is NaN, which marks an empty field in tables of numbers."""
    return None if isinstance(value, float) and math.isnan(value) else value


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The names of all columns, with `outer.inner` for nested ones."""
    out: dict[str, None] = {}
    for row in rows:
        for name, value in row.values.items():
            out[str(name)] = None
            if isinstance(value, Mapping):
                out.update((f"{name}.{inner}", None) for inner in value)
    return list(out)


def read_rows(path: str) -> list[Row]:
    """All rows of a file."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: not a problem file; give one that ends with {', '.join(SUFFIXES)}.")
    try:
        rows = _parquet(path) if suffix == ".parquet" else _text_rows(file.read_text("utf-8-sig"), suffix, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8.") from error
    if not rows:
        raise InputError(f"{path}: has no rows; give a file with at least one.")
    return rows


def _text_rows(text: str, suffix: str, path: str) -> list[Row]:
    if suffix == ".csv":
        csv.field_size_limit(_LONGEST_FIELD)
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        try:
            return [  # a row with more fields than the header keeps them under None
                Row(f"{path}, line {reader.line_num}", {name: row[name] for name in row if name is not None})
                for row in reader
            ]
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: not CSV ({error}); check its quotes.") from error
    if suffix == ".json":
        data = _json(text, path)
        if isinstance(data, dict):  # {"data": [...]}, as some exports write
            lists = [value for value in data.values() if isinstance(value, list)]
            data = lists[0] if len(lists) == 1 else data
        if not isinstance(data, list):
            raise InputError(
                f"{path}: not a list of problems; give a JSON list of objects, or one object a line in a .jsonl."
            )
        items = [(f"{path}, item {i}", value) for i, value in enumerate(data, 1)]
    else:
        lines = [(f"{path}, line {i}", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
        items = [(place, _json(line, place)) for place, line in lines]
    for place, value in items:
        if not isinstance(value, dict):
            raise InputError(f"{place}: not a JSON object with columns, but {type(value).__name__}.")
    return [Row(place, value) for place, value in items]


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON ({error.msg}, column {error.colno}).") from error
    except RecursionError as error:
        raise InputError(f"{place}: not JSON (too deep).") from error
    except ValueError as error:  # Python limits the digits of integers
        digits = f"{sys.get_int_max_str_digits():,} digits"
        raise InputError(f"{place}: a whole number of over {digits}; write it as text, between quotes.") from error


def _parquet(path: str) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({str(error).splitlines()[0]}).") from error
    return [Row(f"{path}, row {i + 1}", row) for i, row in enumerate(table.to_pylist())]


def _read_datasets(source: str) -> list[Row]:
    """Rows of `hf:NAME`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG` or `hf:NAME:CONFIG:SPLIT`; NAME may be a local folder."""
    require("datasets", what=source)
    import datasets

    name, *more = source.removeprefix("hf:").split(":")
    if not name or len(more) > 2:
        raise InputError(f"{source}: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT.")
    if len(more) == 1:
        more = ["", more[0]] if more[0] in _SPLITS else [more[0], ""]
    config, split = more or ("", "")
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        table = datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # network, missing set, unknown split: the library raises many kinds
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise InputError(f"{source}: datasets cannot load it ({reason}).") from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    return [Row(f"{source}, row {i + 1}", row) for i, row in enumerate(table)]


# Columns


def choose_column(
    rows: Sequence[Row], names: Sequence[str], *, path: str, what: str, named: str | None, instead: str = ""
) -> str:
    """The named column, else the first known one; errors list the columns and an alternative (`instead`)."""
    columns = columns_of(rows)
    if named is not None:
        if named in columns or any(row.get(named) is not None for row in rows):
            return named
        nested = [column for column in columns if column.endswith(f".{named}")]
        hint = f"did you mean '{nested[0]}'? There" if len(nested) == 1 else "there"
        raise InputError(f"{path}: no column '{named}' for the {what}; {hint} are {', '.join(columns)}.")
    lower = {column.lower(): column for column in reversed(columns)}
    for name in names:
        if name in lower:
            return lower[name]
    raise InputError(
        f"{path}: no column is known as the {what} (such as {', '.join(names[:4])}); "
        f"name it with {_OPTIONS[what]} COLUMN{instead}. There are {', '.join(columns)}."
    )


def index_column(rows: Sequence[Row]) -> str | None:
    """A column that numbers the rows uniquely; None if there is none."""
    for name in INDEXES:
        found = [row.get(name) for row in rows]
        if None not in found and len({str(value) for value in found}) == len(rows):
            return name
    return None


def _problems(
    rows: Sequence[Row], *, path: str, question: str | None, answer: str | None, pass_rate: str | None
) -> list[Problem]:
    """The problem of each row that has an answer."""
    question = choose_column(rows, QUESTIONS, path=path, what="question", named=question)
    answer = choose_column(rows, ANSWERS, path=path, what="answer", named=answer)
    columns, extras = columns_of(rows), _extras(rows, (question, answer, "messages"))

    def known(names: Sequence[str]) -> str | None:
        return next((name for name in names if name in columns), None)

    id_column, source_column = known(IDS) or index_column(rows), known(SOURCES)
    if pass_rate is not None:
        pass_rate = choose_column(rows, RATES, path=path, what="pass rate", named=pass_rate)
    else:
        pass_rate = known(RATES)
    out = []
    for row in _with_answers(rows, answer, path):
        asked = row.get(question)
        if asked in (None, "", []):
            raise InputError(f"{row.place}: column '{question}' is empty; give every problem one or leave the row out.")
        chat = _chat(asked, row, question)
        text = chat[-1]["content"] if chat else text_of(asked, row, question)
        if not text.strip():
            raise InputError(f"{row.place}: column '{question}' is empty; give every problem a question.")
        if chat is None and "messages" in columns and (beside := row.get("messages")):
            chat = _chat(beside, row, "messages")
        identity, source, rate = row.get(id_column), row.get(source_column), row.get(pass_rate)
        identity = "" if identity is None else text_of(identity, row, str(id_column))
        out.append(
            Problem(
                id=identity or f"{question_key(text):016x}",
                question=text,
                answer=_answer(row, answer),
                messages=chat,
                source="" if source is None else text_of(source, row, str(source_column)),
                pass_rate=None if rate in (None, "") else rate_of(rate, row, str(pass_rate)),
                extra={name: _filled(row.values.get(name)) for name in extras},
            )
        )
    return out


def _extras(rows: Sequence[Row], read: Sequence[str]) -> list[str]:
    """The other columns than those read, without columns of values that JSON cannot hold."""
    names = dict.fromkeys(name for row in rows for name in row.values if name not in read)
    return [name for name in names if all(_is_json(_filled(row.values.get(name))) for row in rows)]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _with_answers(rows: Sequence[Row], column: str, path: str) -> list[Row]:
    """The rows with an answer. A few missing answers, as in public sets, give a warning; more are an error."""
    empty = [row for row in rows if _sole(row.get(column)) in (None, "", [])]
    if len(empty) > _MISSING_SHARE * len(rows):
        raise InputError(
            f"{empty[0].place}: column '{column}' has no answer, one of {len(empty)} such rows of {len(rows)}; "
            "give every problem an answer, leave these rows out, or name another column with --answer COLUMN."
        )
    if empty:
        warnings.warn(
            f"{path}: {len(empty)} of {len(rows)} rows have no answer in '{column}', first {empty[0].place}; left out.",
            ProblemWarning,
            stacklevel=4,
        )
    gone = {row.place for row in empty}
    return [row for row in rows if row.place not in gone]


def _sole(value: Any) -> Any:
    """The value itself, or the only item of a list."""
    return _filled(value[0]) if isinstance(value, list) and len(value) == 1 else value


def _answer(row: Row, column: str) -> str:
    value = _sole(row.get(column))
    if isinstance(value, list):
        raise InputError(f"{row.place}: column '{column}' has {len(value)} answers; give one.")
    text = text_of(value, row, column).strip()
    answer = (stated_answer(text) if "####" in text or "boxed" in text else None) or text
    if not answer:
        raise InputError(f"{row.place}: column '{column}' has no answer in it; leave the row out.")
    return answer


def rate_of(value: Any, row: Row, column: str) -> float:
    """A number between 0 and 1."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate <= 1:
        raise InputError(f"{row.place}: {column} = {value!r} is not a pass rate; give a number between 0 and 1.")
    return rate


def text_of(value: Any, row: Row, column: str) -> str:
    """A value as text; whole numbers in float columns are written without decimals."""
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{row.place}: column '{column}' has half of a character, \\u{ord(text[error.start]):04x}, which cannot be "
            "written as UTF-8; fix the text or leave the row out."
        ) from error
    return text


def _chat(value: Any, row: Row, column: str) -> tuple[dict[str, str], ...] | None:
    """The messages up to the user's last one; None for plain text."""
    if not isinstance(value, list):
        return None
    if not all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in value):
        raise InputError(f"{row.place}: column '{column}' is a list, but not of messages with 'role' and 'content'.")
    last = max((i for i, message in enumerate(value) if message["role"] == "user"), default=None)
    if last is None:
        raise InputError(f"{row.place}: column '{column}' has no message of the user; give the prompt as one.")
    return tuple(
        {"role": text_of(message["role"], row, column), "content": _content(message["content"], row, column)}
        for message in value[: last + 1]
    )


def _content(content: Any, row: Row, column: str) -> str:
    """The text of a message; parts `{"type": "text", "text": …}` (OpenAI's layout) are joined."""
    if content is None:
        raise InputError(f"{row.place}: column '{column}' has a message that says nothing; give its content as text.")
    if not isinstance(content, list):
        return text_of(content, row, column)
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InputError(
                f"{row.place}: column '{column}' has a message with a part of type '{kind}'; only parts of type 'text' "
                "can be asked, so leave the row out."
            )
    return text_of("".join(part["text"] for part in content), row, column)
