"""The caller's side of the grading processes, in which libraries and user code that may hang or crash grade responses.

math-verify and reasoning-gym pass model output to a computer algebra system. It can hang on a text as short as
`9^{9^9}`, inside a multiplication that no exception interrupts, so only killing a process helps. Requests work in any
thread and process and use no signals. Each thread has its own grading process, so that a pool of threads grades in
parallel.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from multiprocessing import Pipe
from typing import Any

_START = "import sys; from isocompute.problems.grading_server import serve; serve(int(sys.argv[1]))"
_IMPORT_SECONDS = 600.0
"""Limit of wall time for importing a library or a user's file, which counts in no other limit."""
_STOP_SECONDS = 0.25
"""How often a thread that waits for a reply looks whether to stop."""


class GradingError(RuntimeError):
    """The grading process refused a request, or could not import what it needs."""


class LostError(GradingError):
    """The grading process ended."""


class TimedOutError(LostError):
    """The grading process did not answer in time and was killed."""


class StoppedError(RuntimeError):
    """The thread was asked to stop while it waited for a reply."""


class GradingProcess:
    """A grading process and our end of the pipe to it; it is killed when this object is collected.

    It has a fixed hash seed, since some reasoning-gym tasks iterate over sets of strings. Otherwise they would generate
    other problems in each process.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.imported: set[str] = set()
        self.pipe, theirs = Pipe()
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.end = weakref.finalize(self, _kill, self.process, self.owner)

    def request(self, do: str, *, library: str, wall_seconds: float | None = None, **arguments: Any) -> Any:
        """The value of a function of the server, which first imports the library or the file."""
        if library not in self.imported:
            self._ask("load", library, {"name": library}, _IMPORT_SECONDS)
            self.imported.add(library)
        return self._ask(do, library, arguments, wall_seconds)

    def _ask(self, do: str, library: str, arguments: dict[str, Any], wall_seconds: float | None) -> Any:
        request = {"do": do, "library": library, "arguments": arguments}
        try:
            self.pipe.send_bytes(json.dumps(request).encode())
            self._wait(wall_seconds)
            reply = json.loads(self.pipe.recv_bytes())
        except (OSError, EOFError) as error:
            raise LostError(f"ended its process{self._exit_code()}") from error
        if "error" in reply:
            raise GradingError(reply["error"])
        return reply["value"]

    def _wait(self, wall_seconds: float | None) -> None:
        until = math.inf if wall_seconds is None else time.monotonic() + wall_seconds
        stop: threading.Event | None = getattr(_thread, "stop", None)
        while not self.pipe.poll(max(0.0, min(_STOP_SECONDS, until - time.monotonic()))):
            if stop is not None and stop.is_set():
                raise StoppedError
            if time.monotonic() >= until:
                raise TimedOutError(f"does not answer within {wall_seconds:g} s")

    def _exit_code(self) -> str:
        try:
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return ""
        return f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()


_thread = threading.local()


def stop_with(event: threading.Event) -> None:
    """Make requests of this thread raise `StoppedError` once the event is set."""
    _thread.stop = event


def request(do: str, *, library: str, wall_seconds: float | None = None, **arguments: Any) -> Any:
    """Ask this thread's grading process; if it does not answer, it is killed and the next request starts another."""
    process: GradingProcess | None = getattr(_thread, "process", None)
    if process is None or process.owner != os.getpid():
        process = _thread.process = GradingProcess()
    try:
        return process.request(do, library=library, wall_seconds=wall_seconds, **arguments)
    except (LostError, StoppedError):
        process.end()
        _thread.process = None
        raise
