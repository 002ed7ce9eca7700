"""Config files as dotted settings: JSON, TOML, YAML, Python, shell scripts, override lists and logs, by content.

Nothing is ever run or imported. A value that depends on something outside the file is unresolved, never guessed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import operator
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isocompute.core.errors import InputError, quiet

_LARGEST = 5_000_000
"""Bytes of a file; a log is larger."""
_PRINTED = re.compile(r"^.{0,200}\{'[A-Za-z_]+': \{'", re.MULTILINE)
"""A nested dict as Python prints it: the config in a trainer's log."""
_PARENTS = 8
"""Configs that build on each other, at most."""
_DEPTH = 40
_MOST_KEYS, _LONGEST_KEY = 100_000, 10_000


@dataclass(frozen=True)
class ConfigFile:
    """A config file's dotted keys and plain values, whatever the file's own form."""

    settings: dict[str, Any]
    form: str
    """How it was written: overrides, flags, yaml, toml, json, python, log."""
    words: tuple[str, ...] = ()
    """Words that identify the trainer: modules that a script starts, classes that a Python file calls."""
    unresolved: tuple[str, ...] = ()
    """Keys whose value depends on something outside the file, such as an unset variable."""
    parents: tuple[str, ...] = ()
    """Configs it builds on that were not found."""
    added: tuple[str, ...] = ()
    """Keys that the file adds to the trainer's own: Hydra's `+key=value`."""

    @property
    def keys(self) -> set[str]:
        """Every key the file sets, resolved or not."""
        return {*self.settings, *self.unresolved}


def read_config(path: str) -> ConfigFile:
    """Read a config file, with the YAML files beside it that it builds on."""
    return parse_config(_text(Path(path), path), source=path, folder=Path(path).parent)


def parse_config(text: str, *, source: str = "config", folder: Path | None = None) -> ConfigFile:
    """Settings from a config's text; `folder` is where the files that it builds on are."""
    if not text.strip():
        raise InputError(f"{source}: empty.")
    if re.search(r"\bGRPOConfig\s*\(", text) and _syntax_tree(text) is not None:
        return _python(text, source)
    for form, load in (("json", _json), ("toml", _toml), ("yaml", _yaml)):
        table = load(text)
        if table is not None:
            merged, missing = _with_parents(table, folder, _PARENTS) if form == "yaml" else (table, [])
            return _config(merged, form, source, tuple(missing))
    if _PRINTED.search(text):
        return _config(printed_config(text), "log", source)
    if _syntax_tree(text) is not None and re.search(r"^\s*(import|from|def|class)\s", text, re.MULTILINE):
        return _python(text, source)
    return _shell(text)


def _text(file: Path, name: str) -> str:
    """A file's text without a byte order mark; `name` is what the user calls it."""
    try:
        if file.stat().st_size > _LARGEST:
            raise InputError(f"{name}: {file.stat().st_size:,} bytes are no config; logs are for `isocompute import`.")
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not text (byte {error.start} is not UTF-8).") from error


# Tables: JSON, TOML, YAML


def _config(table: Mapping[Any, Any], form: str, source: str, parents: tuple[str, ...] = ()) -> ConfigFile:
    try:
        settings, unresolved = resolve(_flatten(table))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return ConfigFile(settings, form, (), tuple(unresolved), parents)


def _json(text: str) -> dict[str, Any] | None:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) else None


def _toml(text: str) -> dict[str, Any] | None:
    """A TOML table. Overrides (`a.b=1`) are valid TOML too, so a table header or spaces around `=` are required."""
    if not re.search(r"^\s*(\[[\w.\"\-\[\]]+\]|[\w.\-]+\s+=\s)", text, re.MULTILINE):
        return None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _yaml(text: str) -> dict[Any, Any] | None:
    import yaml

    if not re.search(r"^\s*[\w.\"'\-]+\s*:(\s|$)", text, re.MULTILINE):
        return None
    try:
        table = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    return table if isinstance(table, dict) else None


def _with_parents(table: dict[Any, Any], folder: Path | None, left: int) -> tuple[dict[Any, Any], list[str]]:
    """Merge the table over the files in its `defaults`; also return the names of files that are not beside it."""
    own = dict(table)
    named = own.pop("defaults", None)
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    base: dict[Any, Any] = {}
    missing: list[str] = []
    for name in names:
        if not isinstance(name, str) or name == "_self_":
            continue
        beside = [] if folder is None or left <= 0 else [folder / name, folder / f"{name}.yaml"]
        parent = next((file for file in beside if file.is_file() and file.stat().st_size <= _LARGEST), None)
        if parent is None:
            missing.append(name)
            continue
        found, more = _with_parents(_yaml(_text(parent, str(parent))) or {}, parent.parent, left - 1)
        base, missing = _merged(base, found), missing + more
    return _merged(base, own), missing


def _merged(base: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    if not base:
        return dict(over)
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        out[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return out


def _flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Nested tables as dotted keys; lists stay values.

    YAML's aliases can make a small file an enormous or endless tree, which is refused past a limit.
    """
    out: dict[str, Any] = {}
    left: list[tuple[str, Mapping[Any, Any]]] = [("", tree)]
    while left:
        prefix, table = left.pop()
        for key, value in table.items():
            if isinstance(value, Mapping) and value:
                left.append((f"{prefix}{key}.", value))
            else:
                out[f"{prefix}{key}"] = value
        if len(out) + len(left) > _MOST_KEYS or len(prefix) > _LONGEST_KEY:
            raise InputError("more settings, or deeper ones, than any config has.")
    return out


def resolve(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Fill in `${other.key}` from the settings themselves; keys that stay unresolved are returned separately."""
    out: dict[str, Any] = {}
    unresolved = []
    for key, value in settings.items():
        found, depth = value, 0
        while isinstance(found, str) and (match := re.fullmatch(r"\$\{([\w.]+)\}", found.strip())) and depth < _DEPTH:
            name = match[1]
            if name.startswith("."):
                name = f"{key.rpartition('.')[0]}{name}"
            if name not in settings:
                break
            found, depth = settings[name], depth + 1
        if isinstance(found, str) and "${" in found:
            unresolved.append(key)
        else:
            out[key] = found
    return out, unresolved


# Python: the keyword arguments of `GRPOConfig(…)`, from the syntax tree

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _python(text: str, source: str) -> ConfigFile:
    """The keyword arguments of the first `GRPOConfig`; names, sums and argparse defaults are filled in."""
    tree = _syntax_tree(text)
    calls = [node for node in ast.walk(tree or ast.Module([], [])) if _called(node) == "GRPOConfig"]
    if tree is None or not calls:
        raise InputError(f"{source}: no GRPOConfig(…) in this Python file.")
    names = _constants(tree)
    settings: dict[str, Any] = {}
    unresolved: list[str] = []
    for keyword in calls[0].keywords:  # type: ignore[attr-defined]
        try:
            value = _constant(keyword.value, names)
        except (ValueError, ArithmeticError, TypeError):
            unresolved.append(keyword.arg or "**")
            continue
        if keyword.arg is not None:
            settings[keyword.arg] = value
        elif isinstance(value, dict):
            settings |= {str(key): item for key, item in value.items()}
    return ConfigFile(settings, "python", ("GRPOConfig",), tuple(unresolved))


def _syntax_tree(text: str) -> ast.Module | None:
    """A Python file's syntax tree, or `None` where it is not Python. Python's warnings about the file are silenced."""
    try:
        with quiet():
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _called(node: ast.AST) -> str:
    """The name of the function that a node calls; empty if the node is not a call."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def _constants(tree: ast.AST) -> dict[str, Any]:
    """Constants by name: assignments, dataclass fields and argparse's defaults; the first one counts."""
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        with contextlib.suppress(ValueError, ArithmeticError, TypeError):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                names.setdefault(node.targets[0].id, _constant(node.value, names))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                names.setdefault(node.target.id, _constant(node.value, names))
            elif isinstance(node, ast.Call) and _called(node) == "add_argument" and node.args:
                flag = _constant(node.args[0], {})
                default = next((k.value for k in node.keywords if k.arg == "default"), None)
                if isinstance(flag, str) and default is not None:
                    names.setdefault(flag.lstrip("-").replace("-", "_"), _constant(default, names))
    return names


def _constant(node: ast.expr, names: Mapping[str, Any], *, whole: bool = False, depth: int = 0) -> Any:
    """The value of a constant expression: literals, names from `names`, sums, lists, dicts; ValueError for others.

    With `whole`, division is that of a shell.
    """
    if depth > _DEPTH:
        raise ValueError("nested too deeply")

    def value(child: ast.expr) -> Any:
        return _constant(child, names, whole=whole, depth=depth + 1)

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Attribute) and node.attr in names:
        return names[node.attr]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = value(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = value(node.left), value(node.right)
        if not all(isinstance(side, int | float) for side in (left, right)):
            raise ValueError("not a sum of numbers")
        return left // right if whole and isinstance(node.op, ast.Div) else _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.List | ast.Tuple):
        return [value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {value(key): value(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "str"):
        return {"int": int, "float": float, "str": str}[node.func.id](value(node.args[0]))
    raise ValueError(f"not a constant: {type(node).__name__}")


# Shell scripts, override files and bare argument lists

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}]*))?\}|(\w+))")
_SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w]*(?:[./][\w-]+)+)=(.*)", re.DOTALL)
_DEFAULTING = re.compile(r'\s*:\s*"?\$\{(\w+):=(.*)\}"?\s*', re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z]")
_LONGEST_LINE = 20_000
"""Characters of a line with its variables filled in."""
_LARGEST_SUM = 1e15
"""No setting is larger than this."""


def _shell(text: str) -> ConfigFile:
    """The settings of a script, read without a shell; later settings override earlier ones.

    Understood: comments, continued lines, quotes, `A=1`, `export A=1`, `${A}`, `${A:-default}`, `: "${A:=default}"`,
    `$((A * B))`, arrays of arguments, Hydra's `+key=value` and `--key value`. Not understood, and unresolved where a
    setting depends on it: commands in `$(…)`, conditions, variables from outside.
    """
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in _lines(text):
        for statement in _split(line, ";"):
            words += _words(statement, variables)
    settings: dict[str, object] = {}
    unresolved: list[str] = []
    others: list[str] = []
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        value: object
        if match := _SETTING.fullmatch(word):
            key, value = match[1].replace("/", "."), parse_value(match[2])
        elif word.startswith("--") and word.strip("-="):
            flag, equals, given = word[2:].partition("=")
            values = [parse_value(given)] if equals else []
            while not equals and at < len(words) and not _starts_argument(words[at]):
                values.append(parse_value(words[at]))
                at += 1
            key, value = flag.replace("-", "_"), True if not values else values[0] if len(values) == 1 else values
        else:
            others.append(word)
            continue
        if any("$" in item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)):
            unresolved.append(key)
        else:
            settings[key] = value
    # `+key` is new to the trainer's configuration; `++key` may as well override what is there.
    new = [word for word in words if word.startswith("+") and not word.startswith("++")]
    added = [match[1].replace("/", ".") for word in new if (match := _SETTING.fullmatch(word))]
    form = "flags" if any(word.startswith("--") for word in words) else "overrides"
    started = [word for word in others if word.endswith(".sh") and not word.startswith("$")]
    return ConfigFile(settings, form, tuple(others), tuple(unresolved), tuple(started), tuple(added))


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


def _words(line: str, variables: dict[str, str]) -> list[str]:
    """The words of one line with variables filled in; assignments are remembered instead of returned."""
    if match := _DEFAULTING.fullmatch(line):
        variables.setdefault(match[1], _expand(match[2].strip("\"'"), variables))
        return []
    array = re.fullmatch(r"\s*\w+\+?=\((.*)\)\s*", line, re.DOTALL)
    expanded = _expand(array[1] if array else line, variables)
    try:
        words = shlex.split(expanded, comments=True)
    except ValueError:  # a quote that never closes: take the words as they are
        words = expanded.split()
    if array:
        return words
    first = 0
    while first < len(words):
        match = _ASSIGNMENT.fullmatch(words[first])
        if words[first] not in ("export", "local", "declare"):
            if match is None or _SETTING.fullmatch(words[first]):
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
        terms = re.sub(r"(?<![\w.$])([A-Za-z_]\w*)", lambda m: variables.get(m[1], m[1]), match[1])
        tree = _syntax_tree(terms.strip())
        statement = tree.body[0] if tree is not None and len(tree.body) == 1 else None
        try:
            found = _constant(statement.value, {}, whole=True) if isinstance(statement, ast.Expr) else None
        except (ValueError, ArithmeticError, RecursionError):
            found = None
        is_number = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < _LARGEST_SUM
        return str(found) if is_number else match[0]

    expanded = _SUM.sub(total, _VARIABLE.sub(value, text))
    return expanded if len(expanded) <= max(_LONGEST_LINE, len(text)) else text  # A=$A$A, again and again


def _starts_argument(word: str) -> bool:
    return bool(_FLAG.match(word)) or _SETTING.fullmatch(word) is not None or word in ("|", "&", "&&", ";", "2>&1", ">")


def parse_value(text: str) -> Any:
    """A word of a command line as a value: numbers, true, null, [lists]; else the text itself.

    A subset of Hydra's override grammar, and of the YAML that OmegaConf takes.

    >>> parse_value("1e-6"), parse_value("True"), parse_value("[0.9,0.999]"), parse_value("Qwen/Qwen3-8B")
    (1e-06, True, [0.9, 0.999], 'Qwen/Qwen3-8B')
    """
    word = text.strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word.lower() in ("null", "none", ""):
        return None
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        doubled = r"\\(['\"\\])" + (r"|'(')" if word[0] == "'" else "")  # Hydra's way to hold a quote, and YAML's
        return re.sub(doubled, lambda match: match[1] or match[2], word[1:-1])
    for pattern, convert in ((r"[+-]?[\d_]+", int), (r"[+-]?(\d[\d_]*)?\.?\d*(e[+-]?\d+)?", float)):
        if re.fullmatch(pattern, word, re.IGNORECASE):
            try:
                return convert(word)
            except ValueError:  # underscores alone, or more digits than Python converts
                return word
    if word.startswith("[") and word.endswith("]"):
        return [parse_value(item) for item in _split(word[1:-1], ",") if item.strip()]
    if word.startswith("{") and word.endswith("}"):
        try:
            return json.loads(word)
        except ValueError:
            return word
    return word


def _split(text: str, separator: str) -> list[str]:
    """Split at each separator outside of quotes and brackets."""
    if separator not in text:
        return [text]
    parts, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth <= 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


# The configuration that a trainer prints into its log: a dict over many lines, a command line, YAML, a dataclass.

_VALUE = r"(\[[^\[\]]*\]|\"[^\"]*\"|'[^']*'|[^\s\"',\\]+)"
_SHELL_QUOTE = "'\\''"
"""A quote inside of quotes, as `set -x` prints it."""
_HYDRA = re.compile(r"(?<![\w.])\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=" + _VALUE)
_ARGPARSE = re.compile(r"(?<![\w-])--([A-Za-z_][\w.-]*)(?:=|[ \t]+(?!--))" + _VALUE)
_LEAVES = (
    rb"train_batch_size|rollout_batch_size|n_samples_per_prompt|num_prompts_per_step|num_generations_per_prompt"
    rb"|groups_per_batch|group_size|num_generations|per_device_train_batch_size|gradient_accumulation_steps"
    rb"|generation_batch_size|steps_per_generation|world_size"
)
"""Keys with the same meaning in every table, read from lines of their own (YAML, a dataclass's text)."""
_LEAF = re.compile(rb"\s*['\"]?(" + _LEAVES + rb")['\"]?\s*[:=]\s*['\"]?(\d{1,12})['\"]?\s*,?\s*[)}]*\s*")
_PAIR = re.compile(rb"['\"]([\w./@+-]{1,100})['\"]: ?(\{(?!\})|\[[^\[\]{}]*\]|'[^']*'|\"[^\"]*\"|[^,{}\[\]()]+)?")
_ARGUMENT = re.compile(rb"(?<![\w.])([A-Za-z_]\w{0,80})=('[^']*'|\"[^\"]*\"|[^\s,()\[\]{}]+)")
_PRINTED_FLAG = re.compile(rb"(?<![\w-])--[A-Za-z_]")
_TELLING = re.compile(rb"batch_size|rollout|samples_per_prompt")
"""Words of a command line that sets a batch."""
_WORDS = {"None": None, "True": True, "False": False}
_LONGEST = 200_000
_COLOUR = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_LOST_ESCAPE = re.compile(rb"\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""A colour code in a copy that has lost the escape characters."""
# Ray: (TaskRunner pid=123) and (worker pid=123, ip=10.0.0.1); torchrun: [rank0]: and [default0]:.
_PROCESS = re.compile(rb"\s*(?:\([^()\n]{0,120}\bpid=\d+[^()\n]{0,60}\)|\[(?:rank|default)\d+\]:)[ ]?")


class ConfigSink(Protocol):
    """Collects the settings that a log prints."""

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Add settings; earlier ones take precedence."""


def strip(line: bytes) -> bytes:
    """A line without colours and without the prefix that names a process."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    elif b"[0m" in line:
        line = _LOST_ESCAPE.sub(b"", line)
    if b"pid=" in line or line.startswith(b"[") or line.startswith(b" ["):
        match = _PROCESS.match(line)
        while match:
            line = line[match.end() :]
            match = _PROCESS.match(line)
    return line


def overrides(line: str) -> dict[str, Any]:
    """What a command line in the log sets: `data.train_batch_size=256` (Hydra), `--rollout.batch_size 128`.

    A list is read whole; one that does not end on the line is left to the printed config.
    """
    line = line.replace(_SHELL_QUOTE, "'")
    found = [*_HYDRA.findall(line), *((key.replace("-", "_"), value) for key, value in _ARGPARSE.findall(line))]
    known = {key: value.strip("'\"") for key, value in found if not value.startswith(("$", "--"))}
    return {
        key: parse_value(value) if value.startswith("[") else value
        for key, value in known.items()
        if not value.startswith("[") or value.endswith("]")
    }


def printed_config(text: str) -> dict[str, Any]:
    """The settings that a whole log prints."""
    out: dict[str, Any] = {}

    class First:
        def add_config(self, config: Mapping[str, Any]) -> None:
            for key, value in config.items():
                out.setdefault(key, value)

    watch = ConfigWatch(First())
    for line in text.splitlines():
        watch.feed(line.encode())
    return out


def process_of(line: bytes) -> bytes:
    """The prefix that names a process, with its colours; lines with another prefix are not part of a dump."""
    end = line.find(b"pid=")
    return line[: line.find(b")", end) + 1] if 0 <= end < 200 else b""


class ConfigWatch:
    """Finds the printed config and command-line overrides in the lines before the first metrics."""

    def __init__(self, rows: ConfigSink) -> None:
        self._rows = rows
        self._path: list[tuple[int, str]] | None = None
        self._process = b""

    def feed(self, line: bytes) -> None:
        """Read one raw line."""
        if len(line) > _LONGEST or (b"_" not in line and self._path is None):
            return
        text = strip(line)
        if (b"=" in text or (b"--" in text and _PRINTED_FLAG.search(text))) and _TELLING.search(text):
            self._rows.add_config(overrides(text.decode(errors="replace")))
        if b"=" in text and (b"Config(" in text or b"Namespace(" in text):
            self._rows.add_config({k.decode(): _scalar(v) for k, v in _ARGUMENT.findall(text)})
        if len(text) < 300 and (leaf := _LEAF.fullmatch(text)):
            self._rows.add_config({leaf[1].decode(): int(leaf[2])})
        if text.startswith((b"{'", b'{"')):
            self._path, self._process = [], process_of(line)
        elif self._path is None or not text[:1].isspace() or process_of(line) != self._process:
            return
        self._rows.add_config(self._pairs(text))

    def _pairs(self, text: bytes) -> dict[str, Any]:
        """The settings on one line of a dump, with their full path; updates the path."""
        path = self._path
        assert path is not None
        out: dict[str, Any] = {}
        opened = last = 0
        for match in _PAIR.finditer(text):
            for _ in range(min(opened, text.count(b"}", last, match.start()))):
                path.pop()
                opened -= 1
            last = match.end()
            while path and path[-1][0] >= match.start():
                path.pop()
            key = match[1].decode()
            if match[2] == b"{":
                path.append((match.start(), key))
                opened += 1
            elif match[2]:
                out[".".join([*(k for _, k in path), key])] = _scalar(match[2])
        return out


def _scalar(text: bytes) -> Any:
    word = text.strip().decode(errors="replace")
    if word[:1] in ("'", '"'):
        return word[1:-1]
    if word[:1] == "[":
        return parse_value(word)
    return _WORDS.get(word, word)
