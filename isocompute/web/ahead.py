"""The first law, made by a second process from the moment the command is given.

Loading the web framework keeps Python busy for half a second, and so do reading the runs and loading what fits them:
two processes do both at once. The second one reads the study, sends a rough law and then the final one through a pipe,
and ends. Whatever it fails at, the app does itself.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import IO, Literal

from isocompute.core.errors import InputError
from isocompute.web.fitting import Fitted, curves_in, fit_fully, fit_roughly, points_of
from isocompute.web.reading import Reading
from isocompute.web.source import Source

__all__ = ["Ahead"]

Stage = Literal["rough", "final"]
_STAGES: tuple[Stage, ...] = ("rough", "final")
_LONGEST = 600.0
"""Seconds after which a process that says nothing is given up."""
_SIZE = 8
"""Bytes that say how long a message is."""


class Ahead:
    """What the other process finds for one version of a study's files."""

    def __init__(self, source: Source, version: str) -> None:
        self._version = version
        self._found: dict[Stage, Future[Fitted | None]] = {stage: Future() for stage in _STAGES}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "isocompute.web.ahead", source.address, source.reading.pack(), version],
            stdin=subprocess.PIPE,  # closed when this process ends, however it does: the other one ends with it
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # One core is the web framework's: threads of a matrix product would only wait for it. And a module in the
            # user's folder is not ours, whatever its name.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        )
        threading.Thread(target=self._listen, name="ahead", daemon=True).start()

    def law(self, stage: Stage, version: str) -> Fitted | None:
        """The law of this version of the files, waited for; None where that of another one is made, or none."""
        if version != self._version:
            return None
        try:
            return self._found[stage].result(_LONGEST)
        except FutureTimeoutError:
            self.close()
            return None

    def close(self) -> None:
        """End the other process; what it has not sent is None."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        from isocompute.web.wire import unpack

        try:
            with self._process as process:
                assert process.stdout is not None
                try:
                    while message := _receive(process.stdout):
                        stage, law, of = unpack(message)
                        self._found[stage].set_result(Fitted(law, of))
                except (KeyError, TypeError, ValueError):  # nothing that was packed here
                    process.kill()
        finally:
            for future in self._found.values():
                if not future.done():
                    future.set_result(None)


def _receive(pipe: IO[bytes]) -> bytes:
    """The next message; empty where there is none any more, or half of one."""
    size = int.from_bytes(pipe.read(_SIZE), "little")
    message = pipe.read(size)
    return message if len(message) == size else b""


def main(source: Source, version: str, pipe: IO[bytes]) -> None:
    """What the other process does; nothing where the files are of another version by now."""
    from isocompute.web.glance import glance
    from isocompute.web.wire import pack

    def send(stage: Stage, fitted: Fitted | None) -> None:
        if fitted is None:
            return
        message = pack((stage, fitted.law, fitted.of))
        pipe.write(len(message).to_bytes(_SIZE, "little") + message)
        pipe.flush()

    snapshot = source.snapshot()
    if snapshot.version != version:
        return
    part = snapshot.part(None)
    seen = glance(source.at(part)) if source.reading.plain else None
    if seen is not None:
        curves, metric, unit = seen
        points = sum(len(curve.compute_C) for curve in curves)
        send("rough", fit_roughly(curves, metric=metric, unit=unit, points=points))
    runs = source.load(part)
    curves, metric, unit = curves_in(runs, metric=None, unit=None)
    points = points_of(runs)
    if seen is None:
        send("rough", fit_roughly(curves, metric=metric, unit=unit, points=points))
    send("final", fit_fully(curves, metric=metric, unit=unit, points=points))


def _end_with_parent() -> None:
    """The parent never writes: what there is to read is its end."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.disable()  # it ends before there is anything to collect
    warnings.simplefilter("ignore")  # the app reads the runs too, and says what there is to say
    with suppress(InputError, BrokenPipeError, KeyboardInterrupt):
        main(Source(sys.argv[1], Reading.unpack(sys.argv[2])), sys.argv[3], sys.stdout.buffer)
