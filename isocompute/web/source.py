"""What is served: a folder of runs or a table, its parts, and a fingerprint that says whether it has changed.

A part is a folder inside the study whose runs belong together, such as the easy and the hard set. Requests name a part
and a run by the names listed here, and nothing else ever becomes a path: what lies outside the study, and is not linked
into it, cannot be asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.web.reading import Reading

if TYPE_CHECKING:
    from isocompute.data import RunSet

__all__ = ["POINTS", "SPEC", "Part", "Snapshot", "Source"]

SPEC = "study.toml"
POINTS = "points.jsonl"
"""As `runs.writer` names it, which takes a tenth of a second to load."""
_DEPTH = 6
"""Run folders lie at most four deep (`runs.load`), in a study that may lie one or two deeper."""
_MOST_FILES, _MOST_LINKED = 100_000, 5_000
"""And folders: of the study's own, and behind links, which may lead to a whole disk."""


@dataclass(frozen=True)
class Part:
    """A folder of runs inside the study; the empty name is the whole of it."""

    name: str
    runs: int


@dataclass(frozen=True)
class Snapshot:
    """The study's files at one moment."""

    version: str
    """Differs whenever a file was added, removed or written to."""
    parts: tuple[Part, ...]
    """The whole comes last where there are others: its runs may not belong together."""
    specs: tuple[str, ...]
    """Folders that hold a `study.toml`, named from the top."""

    def part(self, name: str | None) -> str:
        """A part by name; the first where none is named."""
        if name is None:
            return self.parts[0].name
        if name not in {part.name for part in self.parts}:
            names = ", ".join(f"'{part.name}'" if part.name else "'' (everything)" for part in self.parts)
            raise InputError(f"part '{name}': the study has no such part; its parts are {names}.")
        return name

    def spec_of(self, part: str) -> str | None:
        """The study that a part's cells belong to: the part itself, or the nearest folder above it."""
        above = [spec for spec in self.specs if spec in ("", part) or part.startswith(f"{spec}/")]
        return max(above, key=len, default=None)


class Source:
    """A local folder or table, and how to read it."""

    def __init__(self, address: str, reading: Reading | None = None) -> None:
        if files.is_remote(address):
            raise InputError(f"{address}: the web app serves folders on this machine; copy the study here first.")
        if not files.exists(address):
            raise InputError(f"{address}: no such file or folder; give a study's folder, a folder of runs or a table.")
        self.address = address if address == "/" else address.rstrip("/")
        self.reading = reading or Reading()

    @property
    def name(self) -> str:
        """What to call it."""
        return files.last_part(self.address)

    def at(self, part: str) -> str:
        """The address of a part, as a command takes it."""
        return files.join(self.address, part) if part else self.address

    def load(self, part: str) -> RunSet:
        """The runs of a part."""
        return self.reading.load(self.at(part))

    def snapshot(self) -> Snapshot:
        """Look at every file's size and time."""
        top = Path(self.address)
        digest = hashlib.sha256()
        groups: dict[str, int] = {}
        specs = []
        if top.is_dir():
            for folder, name, size, written in _files(top):
                digest.update(f"{folder}/{name}:{size}:{written}\n".encode(errors="surrogateescape"))
                if name == POINTS:
                    parent = folder.rpartition("/")[0]
                    groups[parent] = groups.get(parent, 0) + 1
                elif name == SPEC:
                    specs.append(folder)
        else:
            found = top.stat()
            digest.update(f"{found.st_size}:{found.st_mtime_ns}".encode())
        parts = _parts(groups, specs)
        # Whoever says which runs are meant, means them all.
        return Snapshot(digest.hexdigest()[:16], parts[-1:] if self.reading.chooses else parts, tuple(specs))


def _files(top: Path) -> Iterator[tuple[str, str, int, int]]:
    """Folder (from the top), name, size and time of every file, in a fixed order; hidden ones are nobody's data.

    Links to folders are followed, as `runs.load` does, but not out of a run, which may lead to anything, and not to a
    folder around them. They come last: whatever they lead to, the study's own files are seen.
    """
    left = {False: _MOST_FILES, True: _MOST_LINKED}
    waiting: list[tuple[str, str, bool, frozenset[tuple[int, int]]]] = [("", str(top), False, frozenset())]
    while waiting:
        folder, path, is_linked, around = waiting.pop()
        left[is_linked] -= 1
        if left[is_linked] < 0:
            continue
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            itself = Path(path).stat()
        except OSError:
            if not folder:
                raise
            continue  # removed while we looked
        here = (itself.st_dev, itself.st_ino)
        if here in around:
            continue
        is_run = any(entry.name == POINTS for entry in entries)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    linked = entry.is_symlink()
                    if len(around) < _DEPTH and not (linked and is_run):
                        inner = f"{folder}/{entry.name}".strip("/")
                        waiting.insert(
                            0 if linked else len(waiting), (inner, entry.path, is_linked or linked, around | {here})
                        )
                    continue
                found = entry.stat()
            except OSError:
                continue
            left[is_linked] -= 1
            if left[is_linked] < 0:
                break
            yield folder, entry.name, found.st_size, found.st_mtime_ns


def _parts(groups: dict[str, int], specs: list[str]) -> tuple[Part, ...]:
    """The folders whose runs belong together. Where there is one such folder, the whole is the only part."""
    whole = Part("", sum(groups.values()))
    several = {folder: runs for folder, runs in sorted(groups.items()) if folder and runs > 1}
    if len(several) < 2:
        return (whole,)
    return (*(Part(_shortest(folder, several, specs), runs) for folder, runs in several.items()), whole)


def _shortest(folder: str, groups: dict[str, int], specs: list[str]) -> str:
    """The study around a folder if it holds no other group, so that `easy/easy` is called `easy`."""
    for spec in sorted(specs, key=len):
        inside = [other for other in groups if other == spec or other.startswith(f"{spec}/")]
        if spec and inside == [folder]:
            return spec
    return folder
