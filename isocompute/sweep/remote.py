"""Studies at an fsspec address: a cell works in a local copy of its folder, which is uploaded as the cell proceeds.

The upload order keeps the cell resumable at any time: points before the checkpoint that counts them, and
`finished.json` last. Object stores replace objects atomically. On other systems, a cell with a partial checkpoint
starts over, and a cell that lacks points counted by its checkpoint fails with that message.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from isocompute.core.allocation import Control
from isocompute.core.errors import InputError
from isocompute.core.recorder import CHECKPOINT, FINISHED, POINTS, RUNNING

_UPLOAD_SECONDS = 60.0
"""Interval of uploads for engines without our checkpoints, such as external trainers."""
_LAST = (POINTS, CHECKPOINT, FINISHED)
"""Uploaded after everything else, in this order."""


def _system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f"{address}: remote addresses need fsspec; pip install 'isocompute[remote]'.") from error
    try:
        system, path = url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise InputError(f"{address}: {error}.") from error
    return system, str(path)


def write(address: str, data: bytes) -> None:
    """Replace a remote file."""
    system, path = _system(address)
    try:
        system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        system.pipe_file(path, data)
    except Exception as error:  # a remote system may raise anything
        raise InputError(f"{address}: cannot be written ({error}).") from error


def remove(address: str) -> None:
    """Remove a remote file if it exists."""
    system, path = _system(address)
    with suppress(FileNotFoundError):
        system.rm_file(path)


def listing(address: str) -> set[str]:
    """The paths of all files below an address, relative to it, in one request."""
    system, path = _system(address)
    system.invalidate_cache()
    return {str(found).removeprefix(path).lstrip("/") for found in system.find(path)}


def read_all(address: str, names: Iterable[str]) -> dict[str, bytes]:
    """The content of several files below an address, by name; files that cannot be read are left out."""
    system, path = _system(address)
    paths = {f"{path}/{name}": name for name in names}
    found = system.cat(list(paths), on_error="omit") if paths else {}
    return {paths[at]: data for at, data in found.items() if at in paths}


@contextmanager
def scratch(address: str, control: Control, check_lock: Callable[[], None]) -> Iterator[tuple[Path, Control]]:
    """A local copy of a remote folder, and a control that uploads it after each new checkpoint.

    `check_lock` runs before each upload; if it raises, nothing is uploaded.
    """
    system, path = _system(address)
    with tempfile.TemporaryDirectory(prefix="isocompute-") as temporary:
        folder = Path(temporary)
        for found in system.find(path) if system.isdir(path) else ():
            target = folder / str(found).removeprefix(path).lstrip("/")
            if target.name != RUNNING:  # it locks the remote folder, not this copy
                target.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(found, str(target))
        uploader = _Uploader(system, path, folder, control, check_lock)
        try:
            yield folder, uploader
        finally:
            uploader.upload()


class _Uploader:
    """A control that forwards the engine's calls and uploads the folder when due."""

    def __init__(self, system: Any, path: str, folder: Path, control: Control, check_lock: Callable[[], None]) -> None:
        self._system, self._path, self._folder, self._control = system, path, folder, control
        self._check_lock = check_lock
        self._sent = _stamps(folder)
        self._when = time.monotonic()

    def stopping(self) -> bool:
        """Whether to stop."""
        self._upload_when_due()
        return self._control.stopping()

    def advanced(self, rollouts: int) -> None:
        """More rollouts are done."""
        self._upload_when_due()
        self._control.advanced(rollouts)

    def _upload_when_due(self) -> None:
        try:
            stat = (self._folder / CHECKPOINT).stat()
            new = self._sent.get(CHECKPOINT) != (stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            new = False
        if new or time.monotonic() - self._when > _UPLOAD_SECONDS:
            self.upload()

    def upload(self) -> None:
        """Upload changed files, then remove remote files that no longer exist here."""
        self._check_lock()
        stamps = _stamps(self._folder)
        order = [name for name in stamps if name not in _LAST] + [name for name in _LAST if name in stamps]
        for name in order:
            if self._sent.get(name) != stamps[name]:
                target = f"{self._path}/{name}"
                self._system.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
                try:
                    self._system.put_file(str(self._folder / name), target)
                except FileNotFoundError:
                    if (self._folder / name).exists():
                        raise
                    del stamps[name]  # a trainer may remove its own files at any time
        for name in self._sent:
            if name not in stamps:
                with suppress(FileNotFoundError):
                    self._system.rm_file(f"{self._path}/{name}")
        self._sent, self._when = stamps, time.monotonic()


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """The time and size of each file, without the temporary files of atomic writes."""
    out = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a trainer may remove its own files at any time
            if path.is_file() and not path.name.startswith("."):
                stat = path.stat()
                out[str(path.relative_to(folder))] = stat.st_mtime_ns, stat.st_size
    return out
