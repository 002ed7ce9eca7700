"""Runs cells as Ray tasks, placed by the CPUs and GPUs that the spec asks for and retried when their node dies.

All state of a task is in its folder. A second attempt on another node therefore resumes from the checkpoint, and the
same command continues after the driver has died. Rollout counts and the request to stop pass through a small actor; if
it is lost, only the progress display is wrong.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError
from isocompute.sweep.execute import Outcome, execute, load_engine, stops_on_signal, write_error
from isocompute.sweep.folder import CellStatus, Report, Result, Tally, longest_first
from isocompute.sweep.spec import Resources

RETRIES = 10
"""Retries of a task whose node or worker died, which is common on spot machines."""
_TICK = 0.5
_BEAT_SECONDS = 1.0
_IN_FLIGHT = 256
"""The largest number of tasks submitted to Ray at a time."""


def run_ray(
    *,
    engine: str,
    statuses: list[CellStatus],
    address: str,
    resources: Resources,
    cluster: str | None,
    report: Report,
) -> Result:
    """Run the unfinished cells on the Ray cluster at `cluster`, or on a new one on this machine."""
    ray = _import_ray()
    if not files.is_remote(address):
        address = str(Path(address).absolute())  # tasks have other working directories
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"--on ray={cluster or ''}: no cluster there ({str(error).splitlines()[0]}).") from error
    try:
        _check_fits(ray, resources)
        board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
        watch = _Watch(ray, board)
        tally = Tally(statuses, report, lambda: watch.rollouts)
        with stops_on_signal(watch.stop):
            _run(ray, watch, tally, longest_first(statuses), engine=engine, address=address, resources=resources)
        return tally.result(folder=address, stopping=watch.stopping)
    finally:
        if ours:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("--on ray needs Ray; pip install 'isocompute[ray]'.") from error
    return ray


def _check_fits(ray: Any, resources: Resources) -> None:
    """Refuse cells that do not fit on any node, whose tasks would wait forever."""
    for name, asked in (("CPU", resources.cpus), ("GPU", resources.gpus)):
        most = max((node["Resources"].get(name, 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        if asked > most:
            raise InputError(
                f"resources: a cell asks for {asked:g} {name}s; no node of the cluster has more than {most:g}."
            )


class _Board:
    """The actor: a stop flag and a count of rollouts."""

    def __init__(self) -> None:
        self._stop, self._rollouts = False, 0

    def advance(self, rollouts: int) -> bool:
        """Add a task's new rollouts; returns whether the task should stop."""
        self._rollouts += rollouts
        return self._stop

    def poll(self, stop: bool) -> int:
        """Set the stop flag for the driver; returns the count."""
        self._stop = self._stop or stop
        return self._rollouts


class _Watch:
    """The driver's copy of the actor's state."""

    def __init__(self, ray: Any, board: Any) -> None:
        self._ray, self.board = ray, board
        self.stopping = False
        self.rollouts = 0

    def poll(self) -> None:
        """Exchange flag and count with the actor; if it is restarting, try again at the next call."""
        with suppress(self._ray.exceptions.RayError):
            rollouts = self._ray.get(self.board.poll.remote(self.stopping), timeout=5.0)
            self.rollouts = max(self.rollouts, rollouts)

    def stop(self) -> bool:
        """Ask the cells to write a checkpoint and return; False where they were asked before."""
        asked_before, self.stopping = self.stopping, True
        return not asked_before


def _run(
    ray: Any, watch: _Watch, tally: Tally, cells: list[Cell], *, engine: str, address: str, resources: Resources
) -> None:
    task = ray.remote(_task).options(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=RETRIES)
    pending = deque(cells)
    flying: dict[Any, Cell] = {}
    while flying or (pending and not watch.stopping):
        while pending and len(flying) < _IN_FLIGHT and not watch.stopping:
            cell = pending.popleft()
            flying[task.remote(engine, cell, address, watch.board)] = cell
        ended, _ = ray.wait(list(flying), num_returns=len(flying), timeout=_TICK) if flying else ([], [])
        for reference in ended:
            tally.add(_outcome(ray, reference, flying.pop(reference), address))
        if tally.unwritable:
            watch.stopping = True
        watch.poll()
        tally.update(running=min(len(flying), _running(ray, resources)), stopping=watch.stopping)


def _running(ray: Any, resources: Resources) -> int:
    """The number of running cells, estimated from the resources in use."""
    total, free = ray.cluster_resources(), ray.available_resources()
    name, each = ("GPU", resources.gpus) if resources.gpus else ("CPU", resources.cpus)
    return round((total.get(name, 0.0) - free.get(name, 0.0)) / each) if each else 0


def _outcome(ray: Any, reference: Any, cell: Cell, address: str) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        failure = RuntimeError(f"its worker died {RETRIES + 1} times, or could not start: {first}")
        if not files.is_remote(address):
            folder = Path(address) / cell.name
            folder.mkdir(parents=True, exist_ok=True)
            write_error(folder, failure)
        return Outcome(cell.name, "failed", str(failure))
    return outcome


class _BoardControl:
    """A cell's control: reports to the actor about once per second, without waiting for its answer."""

    def __init__(self, ray: Any, board: Any) -> None:
        self._ray, self._board = ray, board
        self._answers: list[Any] = []
        self._stop, self._rollouts, self._sent = False, 0, time.monotonic()
        with suppress(ray.exceptions.RayError):  # a queued task may start after the stop
            self._stop = ray.get(board.advance.remote(0), timeout=10.0)

    def stopping(self) -> bool:
        self._exchange()
        return self._stop

    def advanced(self, rollouts: int) -> None:
        self._rollouts += rollouts
        self._exchange()

    def _exchange(self) -> None:
        now = time.monotonic()
        if now - self._sent < _BEAT_SECONDS:
            return
        self._sent = now
        ready, self._answers = self._ray.wait(self._answers, timeout=0) if self._answers else ([], [])
        for answer in ready:
            with suppress(self._ray.exceptions.RayError):
                self._stop = self._stop or self._ray.get(answer)
        if not self._answers:
            self.send()

    def send(self) -> None:
        """Report the new rollouts to the actor."""
        self._answers.append(self._board.advance.remote(self._rollouts))
        self._rollouts = 0


def _task(engine: str, cell: Cell, address: str, board: Any) -> Outcome:
    """The body of a Ray task: run one cell."""
    import ray

    control = _BoardControl(ray, board)
    if control.stopping():
        return Outcome(cell.name, "stopped")
    try:
        return execute(engine=load_engine(engine), cell=cell, address=address, control=control)
    finally:
        control.send()
