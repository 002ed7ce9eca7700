"""What an exporter returns: files to write, and notes on what the trainer cannot do of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Exported", "File", "Flat", "Note", "Notes"]

Flat = dict[str, Any]
"""A config as dotted keys and plain values, in the order they are written."""


@dataclass(frozen=True)
class Note:
    """A part of the plan that the file says differently, or not at all, or that the user has to fill in."""

    code: str
    """The plan's or the recipe's field it is about."""
    message: str


class Notes(list[Note]):
    """Notes while a config is being made; at most one a field, the first one stands."""

    def add(self, code: str, message: str) -> None:
        """Note something about a field."""
        if all(note.code != code for note in self):
            self.append(Note(code, message))


@dataclass(frozen=True)
class File:
    """One file of an export."""

    name: str
    text: str


@dataclass(frozen=True)
class Exported:
    """A plan as one trainer's config. The first file is the one that is printed where only one can be."""

    trainer: str
    version: str
    files: tuple[File, ...]
    notes: tuple[Note, ...]
    micro_batch: int | None
    """Sequences a device takes at once; `None` where the trainer packs by tokens."""
    accumulation: int | None
    """Micro-batches an update adds up on every device."""
