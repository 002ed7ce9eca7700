"""Studies at an fsspec address: a cell works in a scratch folder that is carried to and fro.

Files go up in the order that keeps every moment resumable: points before the checkpoint that counts them, and
`finished.json` last. An object store replaces an object whole or not at all; where a system leaves half a checkpoint,
the cell starts over (`execute`), and where it leaves half of the points that a checkpoint counts, it fails and says so.

A holder beats, uploads and removes its claim only while that still names it; whoever was silent for too long, and was
taken over, stops at its next upload. Nothing is locked: a claim that changes hands in the milliseconds between the look
and the write is overwritten, and then it is the other of the two that stops. Ages are by the clocks of the hosts, since
not every system tells the time of a file.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.cell import Control
from isocompute.core.errors import InputError
from isocompute.core.recorder import CHECKPOINT, FINISHED, POINTS
from isocompute.sweep.claim import BEAT_SECONDS, RUNNING, STALE_SECONDS, Holder, LostError, is_alive, myself

_WAIT_SECONDS = 1.0  # between looks at a claim
_FAILURES = 3
"""Looks at a claim that may fail: what cannot be read may be somebody's."""
_CARRY_SECONDS = 60.0
"""Engines without checkpoints of ours, such as outside trainers, are carried up this often."""

__all__ = ["claim_age", "claimed", "listing", "read_all", "scratch", "write"]

_LAST = (POINTS, CHECKPOINT, FINISHED)
"""Uploaded after everything else, in this order."""
_one_at_a_time = threading.Lock()
"""Not every system replaces a file whole: half a beat of our own must not be read as another's claim."""


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


def listing(address: str) -> set[str]:
    """Every file below an address, as paths relative to it, in one request."""
    system, path = _system(address)
    system.invalidate_cache()
    return {str(found).removeprefix(path).lstrip("/") for found in system.find(path)}


def read_all(address: str, names: Iterable[str]) -> dict[str, bytes]:
    """Files below an address by their names, many at a time; without those that cannot be read."""
    system, path = _system(address)
    paths = {f"{path}/{name}": name for name in names}
    found = system.cat(list(paths), on_error="omit") if paths else {}
    return {paths[at]: data for at, data in found.items() if at in paths}


def claim_age(address: str) -> float:
    """Seconds since the holder of a remote claim last said that it lives; infinite where there is none that does."""
    return _read_claim(address)[1]


def _read_claim(address: str) -> tuple[Holder | None, float]:
    """The holder of a claim and its age; no holder where there is no claim, an error where nobody can say."""
    try:
        told = json.loads(files.read_bytes(address))
        age = time.time() - told.pop("beat")
        holder = Holder(**told)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None, float("inf")
        raise
    except (ValueError, TypeError, KeyError):
        return None, float("inf")
    return holder, age if is_alive(holder, age=age) else float("inf")


def _claimant(address: str) -> Holder | None:
    """The holder of a remote claim; None where there is no claim, an error where nobody can say."""
    system, path = _system(address)
    try:
        with _one_at_a_time:
            told = json.loads(system.cat_file(path))
        return Holder(told["host"], told["pid"], told["started"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _write_claim(address: str) -> None:
    with _one_at_a_time:
        write(address, json.dumps({**asdict(myself()), "beat": time.time()}).encode())


@contextmanager
def claimed(address: str, *, what: str, patience: float) -> Iterator[None]:
    """Hold a remote claim. Such systems lock nothing: two that start within one second of each other both pass, and
    the first to write finds that it has lost the claim (`scratch`).
    """
    deadline = time.monotonic() + patience
    failures = 0
    while True:
        try:
            holder, age = _read_claim(address)
        except InputError:
            failures += 1
            if failures > _FAILURES:
                raise
        else:
            if holder is None or holder == myself() or age >= STALE_SECONDS:
                break
            if time.monotonic() >= deadline:
                raise InputError(
                    f"{what} is being run by process {holder.pid} on {holder.host}; wait for it or stop it."
                )
        time.sleep(_WAIT_SECONDS)
    _write_claim(address)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(Exception):  # a remote system may raise anything; the next beat tries again
                if _claimant(address) == myself():
                    _write_claim(address)

    heart = threading.Thread(target=beat, name="remote claim", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        if _claimant(address) == myself():
            system, path = _system(address)
            with suppress(FileNotFoundError):
                system.rm_file(path)


@contextmanager
def scratch(address: str, control: Control) -> Iterator[tuple[Path, Control]]:
    """A local folder that stands for a claimed remote one, and a control that uploads whenever a new checkpoint is
    there; `LostError`, and nothing is sent, where the claim is another's by now.
    """
    system, path = _system(address)
    with tempfile.TemporaryDirectory(prefix="isocompute-") as temporary:
        folder = Path(temporary)
        _download(system, path, folder)
        carrier = _Carrier(system, path, folder, control, claim=files.join(address, RUNNING))
        try:
            yield folder, carrier
        finally:
            carrier.upload()


def _download(system: Any, path: str, folder: Path) -> None:
    if system.isdir(path):
        for found in system.find(path):
            target = folder / str(found).removeprefix(path).lstrip("/")
            if target.name == RUNNING:
                continue  # about who works above, which this folder is not
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(found, str(target))


class _Carrier:
    """Passes the engine's calls on and carries the folder up on the way."""

    def __init__(self, system: Any, path: str, folder: Path, control: Control, *, claim: str) -> None:
        self._system, self._path, self._folder, self._control = system, path, folder, control
        self._claim = claim
        self._sent: dict[str, tuple[int, int]] = _stamps(folder)
        self._when = time.monotonic()

    def stopping(self) -> bool:
        """Whether to stop."""
        self._carry()
        return self._control.stopping()

    def advanced(self, rollouts: int) -> None:
        """More rollouts are done."""
        self._carry()
        self._control.advanced(rollouts)

    def _carry(self) -> None:
        try:
            stat = (self._folder / CHECKPOINT).stat()
            new = self._sent.get(CHECKPOINT) != (stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            new = False
        if new or time.monotonic() - self._when > _CARRY_SECONDS:
            self.upload()

    def upload(self) -> None:
        """Send what changed; last of all, drop above what is gone here."""
        if (holder := _claimant(self._claim)) != myself():
            raise LostError(self._claim, holder)
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
                    del stamps[name]  # a trainer's own, which it has removed since
        for name in self._sent:
            if name not in stamps:
                with suppress(FileNotFoundError):
                    self._system.rm_file(f"{self._path}/{name}")
        self._sent, self._when = stamps, time.monotonic()


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with its time and size; temporary files of atomic writes are not part of the folder."""
    out = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a trainer's own, which it has removed since
            if path.is_file() and not path.name.startswith("."):
                stat = path.stat()
                out[str(path.relative_to(folder))] = stat.st_mtime_ns, stat.st_size
    return out
