"""`GRPOConfig(…)` in a Python file, read from its syntax tree: the file is never imported or run."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

from isocompute.core.errors import InputError
from isocompute.trainers.reading.setup import Config
from isocompute.trainers.reading.values import number_of, syntax_tree

__all__ = ["read_python"]


def read_python(text: str, source: str) -> Config:
    """The keyword arguments of the file's trainer config; names, sums and argparse defaults are filled in."""
    tree = syntax_tree(text)
    if tree is None:
        raise InputError(f"{source}: not Python.")
    names = _names(tree)
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in ("GRPOConfig", "RLOOConfig")
    ]
    if not calls:
        raise InputError(f"{source}: no GRPOConfig(…) in this Python file.")
    settings: dict[str, Any] = {}
    unresolved: list[str] = []
    for keyword in calls[0].keywords:
        try:
            value = number_of(keyword.value, names)
        except (ValueError, ArithmeticError, TypeError):
            unresolved.append(keyword.arg or "**")
            continue
        if keyword.arg is not None:
            settings[keyword.arg] = value
        elif isinstance(value, dict):
            settings |= {str(key): item for key, item in value.items()}
    return Config(settings, "python", ("GRPOConfig",), tuple(unresolved))


def _called(node: ast.Call) -> str:
    func = node.func
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def _names(tree: ast.AST) -> dict[str, Any]:
    """Constants by name: assignments, dataclass fields and argparse's defaults; the first one stands."""
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        with contextlib.suppress(ValueError, ArithmeticError, TypeError):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                names.setdefault(node.targets[0].id, number_of(node.value, names))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                names.setdefault(node.target.id, number_of(node.value, names))
            elif isinstance(node, ast.Call) and _called(node) == "add_argument" and node.args:
                flag = number_of(node.args[0], {})
                default = next((k.value for k in node.keywords if k.arg == "default"), None)
                if isinstance(flag, str) and default is not None:
                    names.setdefault(flag.lstrip("-").replace("-", "_"), number_of(default, names))
    return names
