"""Values from the text of logs, without evaluating anything: numbers, printed dicts, `np.float64(…)`, `tensor(…)`.

`ast.literal_eval` refuses `inf`, `PosixPath('x')` or `<object>` in a printed dict; `parse` keeps them as text.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any

from isocompute.core.errors import quiet

__all__ = ["LiteralError", "as_float", "as_number", "depth_after", "flatten", "parse"]

_DEPTH = 60
_LONGEST = 1 << 20
_TOKEN = re.compile(r"(?P<text>'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")|(?P<mark>[{}\[\]()])", re.DOTALL)
_OBJECT = re.compile(r"('[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")|<[^<>{}'\"]{0,200}>", re.DOTALL)
"""A string, or an object's default text, such as `<object at 0x7f>`."""
_WORDS = {"null": None, "true": True, "false": False, "nan": math.nan, "inf": math.inf}
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE
)
_LONGEST_NUMBER = 300
"""Characters of a number's text with its wrapper."""
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\(\s*(?P<inside>[^(),]*)[^()]*\)")


class LiteralError(ValueError):
    """The text is not a literal, or one that is too long or nested too deeply."""


def as_number(value: Any) -> float | None:
    """A finite number from a value or its text; None without one."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def as_float(value: Any) -> float | None:
    """A number from a value or its text (`'0.25'`, `np.float64(0.25)`, `tensor(nan)`); None without one."""
    if isinstance(value, str):
        if len(value) > _LONGEST_NUMBER:
            return None
        text = value.strip()
        wrapped = _WRAPPED.fullmatch(text) if text.endswith(")") else None
        if wrapped:
            text = wrapped["inside"].strip()
        if not _NUMBER.fullmatch(text):
            return None
        value = text.replace("_", "")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def flatten(value: Any, prefix: str = "", separator: str = "/", depth: int = 0) -> dict[str, Any]:
    """A nested mapping as one flat one: `{'a': {'b': 1}}` gives `a/b`."""
    out: dict[str, Any] = {}
    if depth < _DEPTH:
        for key, inner in value.items():
            name = f"{prefix}{key}"
            if isinstance(inner, dict):
                out |= flatten(inner, f"{name}{separator}", separator, depth + 1)
            else:
                out[name] = inner
    return out


def depth_after(depth: int, text: str) -> int:
    """The depth of open brackets after a piece of text, without those in strings; -1 once all are closed."""
    return _walk(depth, text)[0]


def _walk(depth: int, text: str) -> tuple[int, int]:
    """The depth after the text, or -1 and where the last bracket was closed."""
    for token in _TOKEN.finditer(text):
        mark = token["mark"]
        if mark and mark in "{[(":
            depth += 1
        elif mark:
            depth -= 1
            if depth <= 0:
                return -1, token.end()
    return depth, len(text)


def parse(text: str) -> Any:
    """The printed value at the start of a text; other output may follow it.

    >>> parse("{'a': np.float64(0.5), 'b': [inf]} done")
    {'a': 0.5, 'b': [inf]}
    """
    text = text[: _walk(0, text)[1]].strip()
    if not text or len(text) > _LONGEST:
        raise LiteralError("empty or too long")
    text = _OBJECT.sub(lambda match: match[1] or repr(match[0]), text)
    try:
        with quiet():  # warnings of invalid escapes
            return _value(ast.parse(text, mode="eval").body, 0)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise LiteralError(str(error)) from error


def _value(node: ast.expr, depth: int) -> Any:
    """The value of a syntax tree; a call is its first argument, or a mapping of its named ones."""
    if depth > _DEPTH:
        raise LiteralError("nested too deeply")
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict) and all(node.keys):
        keys = [str(_value(key, depth + 1)) for key in node.keys if key is not None]
        return dict(zip(keys, (_value(value, depth + 1) for value in node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _value(node.operand, depth + 1)
        if isinstance(operand, int | float):
            return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.Call):
        if node.args:
            return _value(node.args[0], depth + 1)
        return {str(each.arg): _value(each.value, depth + 1) for each in node.keywords}
    return ast.unparse(node)
