"""Shell scripts, override files and bare argument lists, read without a shell.

Understood: comments, continued lines, quotes, `A=1`, `export A=1`, `${A}`, `${A:-default}`, `: "${A:=default}"`,
`$((A * B))`, arrays of arguments, Hydra's `+key=value` and `--key value`. Not understood, and reported as unresolved
where a setting depends on it: commands in `$(…)`, conditions, variables from outside.
"""

from __future__ import annotations

import re
import shlex

from isocompute.trainers.reading.setup import Config
from isocompute.trainers.reading.values import arithmetic, plain

__all__ = ["read_shell"]

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}]*))?\}|(\w+))")
_SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w]*(?:[./][\w-]+)+)=(.*)", re.DOTALL)
_DEFAULTING = re.compile(r'\s*:\s*"?\$\{(\w+):=(.*)\}"?\s*', re.DOTALL)
_LONGEST = 20_000
"""Characters of a line with its variables filled in."""
_FLAG = re.compile(r"--?[A-Za-z]")


def read_shell(text: str) -> Config:
    """The settings of a script: later ones stand over earlier ones."""
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in _lines(text):
        for statement in _statements(line):
            words += _words(statement, variables)
    settings, unresolved, names = _settings(words)
    # `+key` is new to the trainer's configuration; `++key` may as well override what is there.
    new = [word for word in words if word.startswith("+") and not word.startswith("++")]
    added = [match[1].replace("/", ".") for word in new if (match := _SETTING.fullmatch(word))]
    form = "flags" if any(word.startswith("--") for word in words) else "overrides"
    started = [name for name in names if name.endswith(".sh") and not name.startswith("$")]
    return Config(settings, form, tuple(names), tuple(unresolved), tuple(started), tuple(added))


def _lines(text: str) -> list[str]:
    """Logical lines: continued ones joined, comment lines inside a continued command left out, arrays in one piece."""
    joined: list[str] = []
    pending = ""
    for raw in text.replace("\r\n", "\n").split("\n"):
        if raw.lstrip().startswith("#"):
            continue
        line = re.sub(r"\s+#.*$", "", raw) if "'" not in raw and '"' not in raw else raw
        stripped = line.rstrip()
        if stripped.endswith("\\"):
            pending += stripped[:-1] + " "
            continue
        pending += line
        if re.match(r"\s*\w+\+?=\(", pending) and pending.count("(") > pending.count(")"):
            pending += " "
            continue
        joined.append(pending)
        pending = ""
    return [*joined, pending] if pending.strip() else joined


def _statements(line: str) -> list[str]:
    """Split at `;` outside quotes and brackets."""
    if ";" not in line:
        return [line]
    parts, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "({[":
            depth += 1
        elif char in ")}]":
            depth -= 1
        elif char == ";" and depth <= 0:
            parts.append(line[start:i])
            start = i + 1
    return [*parts, line[start:]]


def _words(line: str, variables: dict[str, str]) -> list[str]:
    """The words of one line with variables filled in; assignments are remembered instead of returned."""
    if match := _DEFAULTING.fullmatch(line):
        variables.setdefault(match[1], _expand(match[2].strip("\"'"), variables))
        return []
    array = re.fullmatch(r"\s*\w+\+?=\((.*)\)\s*", line, re.DOTALL)
    words = _split(_expand(array[1] if array else line, variables))
    if array:
        return words
    first = 0
    while first < len(words):
        word = words[first]
        if word in ("export", "local", "declare"):
            first += 1
            continue
        match = _ASSIGNMENT.fullmatch(word)
        if match is None or _SETTING.fullmatch(word):
            break
        variables[match[1]] = match[2]
        first += 1
    return [word for word in words[first:] if word not in ("$@", "$*", "${@}", "${@:1}")]


def _expand(text: str, variables: dict[str, str]) -> str:
    """Fill in variables and sums; an unknown variable without a default stays as it is written."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            return variables[name]
        return match[2].strip("\"'") if match[2] is not None else match[0]

    def total(match: re.Match[str]) -> str:
        sums = re.sub(r"(?<![\w.$])([A-Za-z_]\w*)", lambda m: variables.get(m[1], m[1]), match[1])
        found = arithmetic(sums, whole=True)
        return match[0] if found is None else str(found)

    expanded = _SUM.sub(total, _VARIABLE.sub(value, text))
    return expanded if len(expanded) <= max(_LONGEST, len(text)) else text  # A=$A$A, again and again


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that never closes: take the words as they are
        return line.split()


def _settings(words: list[str]) -> tuple[dict[str, object], list[str], list[str]]:
    settings: dict[str, object] = {}
    unresolved: list[str] = []
    names: list[str] = []

    def put(key: str, value: object) -> None:
        if any("$" in item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)):
            unresolved.append(key)
        else:
            settings[key] = value

    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if match := _SETTING.fullmatch(word):
            put(match[1].replace("/", "."), plain(match[2]))
        elif word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            values = [plain(value)] if equals else []
            while not equals and i < len(words) and not _starts_argument(words[i]):
                values.append(plain(words[i]))
                i += 1
            if key:
                put(key.replace("-", "_"), True if not values else values[0] if len(values) == 1 else values)
        else:
            names.append(word)
    return settings, unresolved, names


def _starts_argument(word: str) -> bool:
    return bool(_FLAG.match(word)) or _SETTING.fullmatch(word) is not None or word in ("|", "&", "&&", ";", "2>&1", ">")
