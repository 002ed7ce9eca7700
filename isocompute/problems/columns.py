r"""Problems from rows: which column is the question, which the answer, and veRL's layout.

veRL keeps a chat in `prompt`, the answer in `reward_model.ground_truth`, the set's name in `data_source`, and anything
else in `extra_info`. Elsewhere columns are found by name. An answer column may hold a worked solution that ends on
`#### 42` (GSM8K) or has a `\boxed{}` (MATH): the final answer is taken out of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute.core.errors import InputError
from isocompute.problems.answers import stated_answer
from isocompute.problems.model import Problem, ProblemWarning, question_key
from isocompute.problems.tables import Row, columns_of, filled, lookup

__all__ = ["choose", "distinct_index", "problems_of", "rate_of", "text_of"]

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
"""Ids only where no two rows share one: veRL numbers the rows of each set from 0, and files hold several sets."""
SOURCES = ("source", "data_source", "dataset")
RATES = ("pass_rate",)
_OPTIONS = {"question": "--question", "answer": "--answer", "pass rate": "--pass-rates"}
MISSING_SHARE = 0.01
"""More rows without an answer than this are an error: MATH's training set has 2 in 7,500."""


def choose(
    rows: Sequence[Row], names: Sequence[str], *, path: str, what: str, named: str | None, instead: str = ""
) -> str:
    """The column that was named, else the first known one; an error lists what there is and what would do `instead`."""
    columns = columns_of(rows)
    if named is not None:
        if named in columns or any(lookup(row.values, named) is not None for row in rows):
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


def distinct_index(rows: Sequence[Row]) -> str | None:
    """A column that numbers the rows, each with another number; None where there is none."""
    columns = columns_of(rows)
    for name in INDEXES:
        if name in columns:
            found = [lookup(row.values, name) for row in rows]
            if None not in found and len({str(value) for value in found}) == len(rows):
                return name
    return None


def _optional(columns: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def problems_of(
    rows: Sequence[Row], *, path: str, question: str | None, answer: str | None, pass_rate: str | None
) -> list[Problem]:
    """One problem a row."""
    question = choose(rows, QUESTIONS, path=path, what="question", named=question)
    answer = choose(rows, ANSWERS, path=path, what="answer", named=answer)
    columns = columns_of(rows)
    id_column = _optional(columns, IDS) or distinct_index(rows)
    source_column = _optional(columns, SOURCES)
    if pass_rate is not None:
        pass_rate = choose(rows, RATES, path=path, what="pass rate", named=pass_rate)
    else:
        pass_rate = _optional(columns, RATES)
    chat_column = "messages" if "messages" in columns and question != "messages" else None
    out = []
    for row in _answered(rows, answer, path):
        asked = _given(row, question)
        chat = _chat(asked, row, question)
        text = chat[-1]["content"] if chat else text_of(asked, row, question)
        if not text.strip():
            raise InputError(f"{row.place}: column '{question}' is empty; give every problem a question.")
        beside = lookup(row.values, chat_column) if chat_column else None
        identity = _optional_text(row, id_column)
        rate = lookup(row.values, pass_rate) if pass_rate else None
        out.append(
            Problem(
                id=identity or f"{question_key(text):016x}",
                question=text,
                answer=_answer(row, answer),
                messages=chat or (_chat(beside, row, "messages") if beside else None),
                source=_optional_text(row, source_column),
                pass_rate=None if rate in (None, "") else rate_of(rate, row, str(pass_rate)),
            )
        )
    return out


def _answered(rows: Sequence[Row], column: str, path: str) -> Sequence[Row]:
    """The rows that have an answer. A few gaps, as in public sets, are left out with a warning; more are an error."""
    empty = [row for row in rows if _sole(lookup(row.values, column)) in (None, "", [])]
    if not empty:
        return rows
    if len(empty) > MISSING_SHARE * len(rows):
        raise InputError(
            f"{empty[0].place}: column '{column}' has no answer, one of {len(empty)} such rows of {len(rows)}; "
            "give every problem an answer, leave these rows out, or name another column with --answer COLUMN."
        )
    warnings.warn(
        f"{path}: {len(empty)} of {len(rows)} rows have no answer in '{column}', first {empty[0].place}; left out.",
        ProblemWarning,
        stacklevel=4,
    )
    without = {id(row) for row in empty}
    return [row for row in rows if id(row) not in without]


def rate_of(value: Any, row: Row, column: str) -> float:
    """A number between 0 and 1."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate <= 1:
        raise InputError(f"{row.place}: {column} = {value!r} is not a pass rate; give a number between 0 and 1.")
    return rate


def _given(row: Row, column: str) -> Any:
    value = lookup(row.values, column)
    if value is None or (isinstance(value, str | list) and not value):
        raise InputError(f"{row.place}: column '{column}' is empty; give every problem one or leave the row out.")
    return value


def text_of(value: Any, row: Row, column: str) -> str:
    """A cell as text; a whole number in a float column is a whole number."""
    whole = isinstance(value, float) and value.is_integer()
    text = str(int(value) if whole else value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{row.place}: column '{column}' has half of a character, \\u{ord(text[error.start]):04x}, which cannot be "
            "written as UTF-8; fix the text or leave the row out."
        ) from error
    return text


def _optional_text(row: Row, column: str | None) -> str:
    value = lookup(row.values, column) if column else None
    return "" if value is None else text_of(value, row, str(column))


def _chat(value: Any, row: Row, column: str) -> tuple[dict[str, str], ...] | None:
    """A list of messages up to the last one of the user; None for plain text."""
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
    """What a message says; parts `{"type": "text", "text": …}` (OpenAI's layout) are joined."""
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


def _sole(value: Any) -> Any:
    """The cell itself, or the only item of a list."""
    return filled(value[0]) if isinstance(value, list) and len(value) == 1 else value


def _answer(row: Row, column: str) -> str:
    value = _sole(lookup(row.values, column))
    if isinstance(value, list):
        raise InputError(f"{row.place}: column '{column}' has {len(value)} answers; give one.")
    text = text_of(value, row, column).strip()
    found = stated_answer(text) if "####" in text or "boxed" in text else None
    if not (found or text):
        raise InputError(f"{row.place}: column '{column}' has no answer in it; leave the row out.")
    return found or text
