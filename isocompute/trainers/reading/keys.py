"""Which keys a trainer has: a misspelt one is no error to most of them, and leaves a default standing.

`isocompute/export/keys/` lists them, taken from the versions and commits named there. A key that is listed without
anything below it may hold whatever it likes: keyword arguments, environment variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

__all__ = ["keys_of", "unknown_keys"]

_CLOSE = 0.8
"""Of 1: how alike two words must be (difflib)."""


@cache
def keys_of(trainer: str) -> frozenset[str]:
    """Every key of a trainer, its tables among them."""
    text = (files("isocompute.trainers") / "keys" / f"{trainer.replace('-', '_')}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def unknown_keys(
    trainer: str, keys: Iterable[str], *, read: Iterable[str] = (), alone: bool = False
) -> dict[str, str | None]:
    """Those of a config's keys that the trainer does not have, each with the one that was probably meant.

    `read` are further keys that it has, such as older names. A script holds arguments of other programs too, so a key
    in no table of the trainer's counts only where it looks like one of its keys, unless the file is the trainer's
    `alone`.
    """
    listed = keys_of(trainer)
    known = listed | set(read)
    tables = {key.rpartition(".")[0] for key in listed}
    split = [key.split(".") for key in sorted(known)]
    out: dict[str, str | None] = {}
    for key in keys:
        parts = key.split(".")
        above = [".".join(parts[:depth]) for depth in range(1, len(parts))]
        if key in known or any(table in listed and table not in tables for table in above):
            continue
        near = _meant(parts, [other for other in split if len(other) == len(parts)])
        if alone or near is not None or parts[0] in tables:
            out[key] = near
    return out


def _meant(parts: list[str], others: list[list[str]]) -> str | None:
    """The key that was probably meant: one that is spelt differently in a single part, and there not by much."""
    for at, part in enumerate(parts):
        beside = {
            other[at]: other for other in others if other[:at] == parts[:at] and other[at + 1 :] == parts[at + 1 :]
        }
        near = get_close_matches(part, beside, n=1, cutoff=_CLOSE)
        if near:
            return ".".join(beside[near[0]])
    return None
