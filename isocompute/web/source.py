"""The source that the app serves: a folder of runs or a table, how to read it, its parts, and its file version.

A part is a folder inside the study whose runs belong together, such as those on the easy problem set. Requests name
parts and runs as listed here and give no other paths, so nothing outside the study can be read.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from isocompute.core import files
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.core.run import RunSet

_SPEC = "study.toml"
_POINTS = "points.jsonl"
"""As in `data.writer`, which takes a tenth of a second to import."""
_DEPTH = 6
"""`data.load` finds runs four folders deep, and the study may be one or two folders deeper."""
_MAX_FILES = 100_000
"""A limit in case a link points to a whole disk."""
OptionValue = str | float | bool | tuple[int, ...] | list[str] | None

_ACCEPTED = {
    "fit": (_ALL := {"columns", "where", "without", "problems_per_batch", "rollouts_per_problem"}),
    "report": _ALL,
    "claims": _ALL,
    "forecast": _ALL,
    "compare": {"columns", "where"},
    "health": {"problems_per_batch", "rollouts_per_problem"},
    "plan": {"where", "without"},
}
"""The load options that each command accepts; other options of `plan` with these names constrain the plan."""


def command_line(*words: str, options: Mapping[str, OptionValue] | None = None) -> str:
    """A command with its options, quoted for a shell; options that are None or False are left out.

    The values of a tuple are joined by commas, those of a list each repeat the option.

    >>> command_line("plan", options={"budget": "$2000", "n": (8, 16), "extrapolate": True, "gpus": None})
    "isocompute plan --budget '$2000' --n 8,16 --extrapolate"
    >>> command_line("fit", "runs", options={"without": ["n8", "debug*"]})
    "isocompute fit runs --without n8 --without 'debug*'"
    """
    out = ["isocompute", *words]
    for name, value in (options or {}).items():
        if value is None or value is False:
            continue
        for one in value if isinstance(value, list) else [value]:
            out.append(f"--{name.replace('_', '-')}")
            if isinstance(one, tuple):
                out.append(",".join(map(str, one)))
            elif one is not True:
                out.append(f"{one:.12g}" if isinstance(one, float) else str(one))
    return shlex.join(out)


@dataclass(frozen=True)
class LoadOptions:
    """Options for reading runs that `isocompute web` shares with other commands."""

    where: Mapping[str, str] = field(default_factory=dict)
    problems_per_batch: int | None = None
    rollouts_per_problem: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def select_runs(self) -> bool:
        """Whether they leave some runs out."""
        return bool(self.where or self.without)

    @property
    def given(self) -> dict[str, str | int | list[str]]:
        """The options that were given, as values for a command line.

        >>> LoadOptions(where={"set": "easy"}, rollouts_per_problem=8).given
        {'where': 'set=easy', 'rollouts_per_problem': 8}
        """
        options = {
            "columns": ",".join(f"{key}={value}" for key, value in self.columns.items()),
            "where": ",".join(f"{key}={value}" for key, value in self.where.items()),
            "without": list(self.without),
            "problems_per_batch": self.problems_per_batch,
            "rollouts_per_problem": self.rollouts_per_problem,
        }
        return {name: value for name, value in options.items() if value}

    def command(self, name: str, *words: str, options: Mapping[str, OptionValue] | None = None) -> str | None:
        """A command that reads the runs in the same way; None if it lacks an option for that.

        >>> LoadOptions(rollouts_per_problem=8).command("fit", "logs", options={"unit": "tokens"})
        'isocompute fit logs --rollouts-per-problem 8 --unit tokens'
        """
        if not self.given.keys() <= _ACCEPTED[name]:
            return None
        return command_line(name, *words, options={**self.given, **(options or {})})


@dataclass(frozen=True)
class StudySubset:
    """A folder of runs inside the study; an empty name means the whole study."""

    name: str
    runs: int


@dataclass(frozen=True)
class Snapshot:
    """The study's files at one moment."""

    version: str
    """Changes when a file is added, removed or written to."""
    parts: tuple[StudySubset, ...]
    """The whole study comes last if there are several, since its runs may not belong together."""
    specs: tuple[str, ...]
    """Folders with a `study.toml`, relative to the source."""

    def part(self, name: str | None) -> str:
        """Check the name of a part; None gives the first."""
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

    def __init__(self, address: str, options: LoadOptions | None = None) -> None:
        if files.is_remote(address):
            raise InputError(f"{address}: the web app serves folders on this machine; copy the study here first.")
        if not files.exists(address):
            raise InputError(f"{address}: no such file or folder; give a study's folder, a folder of runs or a table.")
        self.address = address if address == "/" else address.rstrip("/")
        self.options = options or LoadOptions()

    def at(self, part: str) -> str:
        """The address of a part for a command."""
        return files.join(self.address, part) if part else self.address

    def load(self, part: str) -> RunSet:
        """The runs of a part."""
        from isocompute.data.loading import load

        return load(self.at(part), **vars(self.options))

    def snapshot(self) -> Snapshot:
        """Read the size and modification time of every file."""
        top = Path(self.address)
        digest = hashlib.sha256()
        runs_in: dict[str, int] = {}
        specs = []
        if top.is_dir():
            for folder, entry in islice(_files(top), _MAX_FILES):
                with suppress(OSError):  # removed since it was listed
                    stat = entry.stat()
                    line = f"{folder}/{entry.name}:{stat.st_size}:{stat.st_mtime_ns}\n"
                    digest.update(line.encode(errors="surrogateescape"))
                    if entry.name == _POINTS:
                        group = folder.rpartition("/")[0]
                        runs_in[group] = runs_in.get(group, 0) + 1
                    elif entry.name == _SPEC:
                        specs.append(folder)
        else:
            stat = top.stat()
            digest.update(f"{stat.st_size}:{stat.st_mtime_ns}".encode())
        parts = _parts(runs_in, specs)
        # Options that select runs apply to the whole study.
        return Snapshot(digest.hexdigest()[:16], parts[-1:] if self.options.select_runs else parts, tuple(specs))


def _files(
    path: Path, folder: str = "", parents: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Relative folder and entry of every file that is not hidden, in a fixed order.

    Links to folders are followed, as in `data.load`, except inside a run's folder and in cycles.
    """
    try:
        entries, stat = sorted(os.scandir(path), key=lambda entry: entry.name), path.stat()
    except OSError:
        if not parents:
            raise
        return  # removed since it was listed
    here = (stat.st_dev, stat.st_ino)
    if here in parents:
        return
    is_run = any(entry.name == _POINTS for entry in entries)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            yield folder, entry
        elif len(parents) < _DEPTH and not (is_run and entry.is_symlink()):
            yield from _files(Path(entry.path), f"{folder}/{entry.name}".strip("/"), (*parents, here))


def _parts(runs_in: Mapping[str, int], specs: list[str]) -> tuple[StudySubset, ...]:
    """The folders whose runs belong together. If there are fewer than two, the whole study is the only part."""
    whole = StudySubset("", sum(runs_in.values()))
    several = {folder: runs for folder, runs in sorted(runs_in.items()) if folder and runs > 1}
    if len(several) < 2:
        return (whole,)

    def name(folder: str) -> str:
        """The study around a folder if it contains no other group, so that `easy/easy` is called `easy`."""
        for spec in sorted(specs, key=len):
            if spec and [other for other in runs_in if other == spec or other.startswith(f"{spec}/")] == [folder]:
                return spec
        return folder

    return (*(StudySubset(name(folder), runs) for folder, runs in several.items()), whole)
