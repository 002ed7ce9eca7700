"""A config file as dotted settings, its form found by content: JSON, TOML, YAML, Python, shell and overrides, a log."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError
from isocompute.trainers.printed import ConfigWatch
from isocompute.trainers.reading.python import read_python
from isocompute.trainers.reading.setup import Config
from isocompute.trainers.reading.shell import read_shell
from isocompute.trainers.reading.values import flatten, resolve, syntax_tree

__all__ = ["parse", "read_config"]

_LARGEST = 5_000_000
_PRINTED = re.compile(r"^.{0,200}\{'[A-Za-z_]+': \{'", re.MULTILINE)
"""A nested dict as Python prints it: the config in a trainer's log."""
_PARENTS = 8
"""Configs that build on each other, at most."""


def read_config(path: str) -> Config:
    """Read a config file, with the YAML files beside it that it builds on."""
    return parse(_text(Path(path), path), source=path, folder=Path(path).parent)


def _text(file: Path, name: str) -> str:
    """A file's text, without the mark that some editors begin it with; `name` is what its reader knows it by."""
    try:
        if file.stat().st_size > _LARGEST:
            raise InputError(f"{name}: {file.stat().st_size:,} bytes are no config; logs are for `isocompute import`.")
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not text (byte {error.start} is not UTF-8).") from error


def parse(text: str, *, source: str = "config", folder: Path | None = None) -> Config:
    """Settings from a config's text."""
    if not text.strip():
        raise InputError(f"{source}: empty.")
    if re.search(r"\b(GRPOConfig|RLOOConfig)\s*\(", text) and syntax_tree(text) is not None:
        return read_python(text, source)
    table = _json(text)
    if table is not None:
        return _config(table, "json", source)
    table = _toml(text)
    if table is not None:
        return _config(table, "toml", source)
    table = _yaml(text)
    if table is not None:
        merged, missing = _with_parents(table, folder, _PARENTS)
        return _config(merged, "yaml", source, tuple(missing))
    if _PRINTED.search(text):
        return _log(text, source)
    if syntax_tree(text) is not None and re.search(r"^\s*(import|from|def|class)\s", text, re.MULTILINE):
        return read_python(text, source)
    return read_shell(text)


def _log(text: str, source: str) -> Config:
    """The config that a trainer printed into its log, read as `isocompute import` reads it."""
    printed = _Printed()
    watch = ConfigWatch(printed)
    for line in text.splitlines():
        watch.feed(line.encode())
    return _config(printed.settings, "log", source)


class _Printed:
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def found(self, config: Mapping[str, Any]) -> None:
        self.settings = {**config, **self.settings}


def _config(table: Mapping[Any, Any], form: str, source: str, parents: tuple[str, ...] = ()) -> Config:
    try:
        settings, unresolved = resolve(flatten(table))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return Config(settings, form, (), tuple(unresolved), parents)


def _json(text: str) -> dict[str, Any] | None:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) else None


def _toml(text: str) -> dict[str, Any] | None:
    """A TOML table. A file of overrides can be one too (`a.b=1`), so tables or spaces around `=` are asked for."""
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
    """The table over those named in `defaults`, where they are beside it; the names of those that are not."""
    own = dict(table)
    named = own.pop("defaults", None)
    names = (
        [named]
        if isinstance(named, str)
        else [n for n in named if isinstance(n, str)]
        if isinstance(named, list)
        else []
    )
    base: dict[Any, Any] = {}
    missing: list[str] = []
    for name in names:
        if name == "_self_":
            continue
        parent = _parent(folder, name) if left > 0 else None
        if parent is None:
            missing.append(name)
            continue
        found, more = _with_parents(_yaml(_text(parent, str(parent))) or {}, parent.parent, left - 1)
        base, missing = _merged(base, found), missing + more
    return _merged(base, own), missing


def _parent(folder: Path | None, name: str) -> Path | None:
    if folder is None:
        return None
    for candidate in (folder / name, folder / f"{name}.yaml"):
        if candidate.is_file() and candidate.stat().st_size <= _LARGEST:
            return candidate
    return None


def _merged(base: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    if not base:
        return dict(over)
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        out[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return out
