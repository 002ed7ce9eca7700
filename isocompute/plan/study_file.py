"""`plan --next` as a `study.toml`: the proposed cells as a grid at one budget, on the engine of the law's runs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute.plan.next_cells import Proposal
from isocompute.runs import files

__all__ = ["study_of", "study_text"]

_TABLES = ("problems", "recipe", "evaluation", "resources", "engine_options")


def study_of(source: str) -> dict[str, Any] | None:
    """The spec of the study that a folder of runs is, or None where it is none."""
    path = files.join(source, "study.toml")
    if not files.is_folder(source) or not files.exists(path):
        return None
    try:
        return tomllib.loads(files.read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None


def study_text(
    proposals: Sequence[Proposal], *, before: Mapping[str, Any] | None, recipe: Mapping[str, Any], seed: int, why: str
) -> str:
    """The file. `before` is the study whose engine and tables are kept; without one, the command is left open."""
    cells = [p.allocation for p in proposals]
    spec = dict(before or {})
    lines = [f"# {line}" for line in why.splitlines()]
    if before is None:
        lines += ["# No study made the law's runs: put your trainer's command and log here (docs/study.md)."]
        spec = {
            "engine": "command",
            "recipe": dict(recipe),
            "engine_options": {
                "command": [
                    "python",
                    "train.py",
                    "{problems_per_batch}",
                    "{rollouts_per_problem}",
                    "{update_steps}",
                    "{folder}",
                ],
                "logs": {"path": "{folder}/metrics.jsonl", "format": "jsonl"},
            },
        }
    taken = [int(s) for s in spec.get("seeds", [])]
    fresh = seed if seed not in taken else max(taken) + 1
    lines += [f"engine = {json.dumps(spec['engine'])}", f"seeds = [{fresh}]", ""]
    for name in _TABLES:
        if spec.get(name):
            lines += _table(name, spec[name])
    lines += [
        "[grid]",
        f"problems_per_batch = {json.dumps(sorted({c.problems_per_batch for c in cells}))}",
        f"rollouts_per_problem = {json.dumps(sorted({c.rollouts_per_problem for c in cells}))}",
        "",
        "[budget]",
        f"rollouts = {max(c.compute for c in cells)}",
    ]
    return "\n".join(lines) + "\n"


def _table(name: str, table: Any) -> list[str]:
    if isinstance(table, list):
        return [line for each in table for line in [f"[[{name}]]", *_fields(each), ""]]
    return [f"[{name}]", *_fields(table), ""]


def _fields(table: Mapping[str, Any]) -> list[str]:
    return [f"{json.dumps(key)} = {_value(value)}" for key, value in table.items() if value is not None]


def _value(value: Any) -> str:
    """JSON's strings, numbers, booleans and lists are TOML's too; tables are written inline."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return json.dumps(value)
