"""Plain values from the text that configs are written in; nothing is ever run."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from isocompute.core.caught import quiet
from isocompute.core.errors import InputError

__all__ = ["arithmetic", "flatten", "number_of", "plain", "resolve", "syntax_tree"]

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_DEPTH = 40
_LARGEST = 1e15
"""No setting is larger; a sum that is says nothing."""
_MOST_KEYS, _LONGEST = 100_000, 10_000


def plain(text: str) -> Any:
    """A word of a command line as a value: numbers, true, null, [lists]; else the text itself.

    >>> plain("1e-6"), plain("True"), plain("[0.9,0.999]"), plain("Qwen/Qwen3-8B")
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
    if re.fullmatch(r"[+-]?[\d_]+", word):
        return _integer(word)
    if re.fullmatch(r"[+-]?(\d[\d_]*)?\.?\d*(e[+-]?\d+)?", word, re.IGNORECASE):
        try:
            return float(word)
        except ValueError:
            return word
    if word.startswith("[") and word.endswith("]"):
        return [plain(item) for item in _items(word[1:-1])]
    if word.startswith("{") and word.endswith("}"):
        try:
            return json.loads(word)
        except ValueError:
            return word
    return word


def _integer(word: str) -> Any:
    try:
        return int(word)
    except ValueError:  # underscores alone, or more digits than Python converts
        return word


def _items(text: str) -> list[str]:
    """Split a flat list at its commas; a comma inside brackets or quotes stays."""
    items, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
    return [item for item in [*items, text[start:]] if item.strip()]


def arithmetic(text: str, *, whole: bool = False) -> int | float | None:
    """The value of a sum of numbers such as `(512 + 1024) * 2`; `whole` divides as a shell does. `None` otherwise."""
    try:
        with quiet():
            tree = ast.parse(text.strip(), mode="eval")
        value = number_of(tree.body, {}, whole=whole)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return None
    return value


def syntax_tree(text: str) -> ast.Module | None:
    """A Python file's syntax tree, or `None` where it is not Python. Its author's warnings are not ours."""
    try:
        with quiet():
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def number_of(node: ast.expr, names: Mapping[str, Any], *, whole: bool = False, depth: int = 0) -> Any:
    """A constant expression's value: literals, names from `names`, sums, lists, dicts. ValueError where it is more."""
    if depth > _DEPTH:
        raise ValueError("nested too deeply")

    def value(child: ast.expr) -> Any:
        return number_of(child, names, whole=whole, depth=depth + 1)

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
        if whole and isinstance(node.op, ast.Div):
            return left // right
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.List | ast.Tuple):
        return [value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {value(key): value(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "str"):
        inner = value(node.args[0])
        return {"int": int, "float": float, "str": str}[node.func.id](inner)
    raise ValueError(f"not a constant: {type(node).__name__}")


def flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Nested tables as dotted keys; lists stay values.

    YAML's aliases can make a small file an enormous tree, or one without end: past a limit it is refused.
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
        if len(out) + len(left) > _MOST_KEYS or len(prefix) > _LONGEST:
            raise InputError("more settings, or deeper ones, than any config has.")
    return out


def resolve(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Fill in `${other.key}` from the settings themselves; keys that stay unresolved are named and left out."""
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
