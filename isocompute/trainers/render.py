"""Flat settings as text: Hydra overrides, shell scripts, command-line flags, YAML, TOML, Python."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Flat, Note

__all__ = ["dotlist", "flags", "header", "hydra", "python_call", "shell_script", "toml", "yaml_text"]

_WIDTH = 118
_NO_TEXT = ("null", "true", "false", "nan", "inf")
"""Words that are values of another kind unless they are quoted."""


def header(plan: Plan, trainer: str, notes: Iterable[Note], extra: Sequence[str] = ()) -> str:
    """Comment lines for the top of a file: what the plan is, how to start it, and every note."""
    lines = [
        f"{plan.problems_per_batch} problems × {plan.rollouts_per_problem} rollouts × {plan.update_steps} updates = "
        f"{plan.compute:,} rollouts, for {trainer}, by isocompute.",
        *extra,
        *(f"note ({note.code}): {note.message}" for note in notes),
    ]
    return "".join(f"# {part}\n" for line in lines for part in _wrap(" ".join(line.splitlines())))


def _wrap(line: str) -> list[str]:
    """Break at spaces, without textwrap's habit of breaking at hyphens inside a flag."""
    out, words = [], line.split(" ")
    row = words[0]
    for word in words[1:]:
        if len(row) + 1 + len(word) > _WIDTH:
            out.append(row)
            row = "  " + word
        else:
            row += " " + word
    return [*out, row]


def number(value: float) -> str:
    """A float that reads back equal, in every format here (YAML 1.1 takes 1e-06 for text, so there is always a dot)."""
    text = repr(float(value))
    if "e" in text and "." not in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}.0e{exponent}"
    return text


def hydra(key: str, value: Any) -> str:
    r"""One Hydra override, `key=value`: a backslash means itself there, unless a quote follows.

    >>> print(hydra("path", "it's"), hydra("path", r"a\b"))
    path='it\'s' path='a\b'
    """
    return f"{key}={_word(value, _hydra_quoted)}"


def dotlist(key: str, value: Any) -> str:
    """The same for OmegaConf's own command line, whose values are YAML.

    >>> print(dotlist("path", "it's"))
    path='it''s'
    """
    return f"{key}={_word(value, _yaml_quoted)}"


def _hydra_quoted(text: str) -> str:
    before_a_quote = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", before_a_quote) + "'"


def _yaml_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _word(value: Any, quoted: Callable[[str], str]) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_word(item, quoted) for item in value) + "]"
    text = str(value)
    if re.fullmatch(r"[A-Za-z_./][\w./@%-]*", text) and text.lower() not in _NO_TEXT:
        return text
    return quoted(text)


def flags(settings: Flat) -> list[list[str]]:
    """Command-line flags: `--key value`, `--key a b` for a list, a bare `--key` for True and nothing for False."""
    out = []
    for key, value in settings.items():
        if value is False:
            continue
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        out.append([f"--{key}", *(number(v) if isinstance(v, float) else str(v) for v in values)])
    return out


def shell_script(top: str, command: str, arguments: Iterable[Sequence[str]], as_written: Iterable[str] = ()) -> str:
    """A bash script: comments, then one command with an argument a line, those `as_written` for bash to expand.

    `"$@"` lets a caller add more, which stand over the ones before.
    """
    quoted = (" ".join(shlex.quote(word) for word in words) for words in arguments)
    rows = [command, *quoted, *as_written, '"$@"']
    return f"#!/usr/bin/env bash\n{top}set -euo pipefail\n\n" + " \\\n    ".join(rows) + "\n"


def nested(settings: Flat) -> dict[str, Any]:
    """Dotted keys as nested tables."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        table = out
        for part in path:
            table = table.setdefault(part, {})
        table[last] = list(value) if isinstance(value, tuple) else value
    return out


def yaml_text(top: str, settings: Flat) -> str:
    """A YAML file with nested tables."""
    import yaml

    body: str = yaml.safe_dump(nested(settings), sort_keys=False, allow_unicode=True, width=_WIDTH)
    return top + body


def toml(top: str, settings: Flat) -> str:
    """A TOML file: scalars and arrays under their tables; a list of flat tables becomes an array of tables."""
    tables: dict[str, list[str]] = {"": []}
    arrays: list[str] = []
    for key, value in settings.items():
        table, _, last = key.rpartition(".")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            arrays += [_array_entry(key, entry) for entry in value]
        else:
            tables.setdefault(table, []).append(f"{last} = {_toml_value(value)}\n")
    parts = [("" if not name else f"[{name}]\n") + "".join(rows) for name, rows in tables.items()]
    return "\n".join([top, *(part for part in parts if part), *arrays])


def _array_entry(key: str, entry: dict[str, Any]) -> str:
    return f"[[{key}]]\n" + "".join(f"{name} = {_toml_value(value)}\n" for name, value in entry.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # JSON's true, 1 and "text" are TOML's


def python_call(top: str, module: str, name: str, settings: Flat) -> str:
    """A Python file with one call: `config = NAME(key=value, …)`."""
    rows = "".join(f"    {key}={value!r},\n" for key, value in settings.items())
    return f"{top}from {module} import {name}\n\nconfig = {name}(\n{rows})\n"
