"""Running a study in worker processes of this machine, and its progress: `isocompute study run` and `study status`.

`ProcessPoolExecutor` ends all workers when one dies and cannot tell which cell was running. Here each worker has its
own pipe, so a death costs one attempt of one cell.

Workers share the stop flag and the counters of rollouts as memory without locks, since a worker killed inside a locked
section would never release the lock. Each counter has one writer.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import threading
from collections import Counter, deque
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError
from isocompute.sweep.execute import STOP_SIGNALS, Outcome, execute, load_engine, stops_on_signal, write_error
from isocompute.sweep.folder import CellStatus, Progress, Report, Result, StudyFolder, Tally, longest_first
from isocompute.sweep.spec import cells, check_cells, parse_spec

RETRIES = 2
"""Retries of a cell whose worker died; enough for an out-of-memory kill that another process caused."""
_TICK = 0.2
_CHUNK_SECONDS = 0.1
_LARGEST_CHUNK = 64
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1 while a worker loads its libraries: BLAS would start one thread per core, but cells fill the cores."""


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_local(
    *, engine: str, statuses: list[CellStatus], address: str, workers: int | None = None, report: Report
) -> Result:
    """Run the unfinished cells in worker processes until all have ended or the user stops the study."""
    cells = longest_first(statuses)
    pool = _Pool(engine, address, min(workers or available_cores(), len(cells)))
    tally = Tally(statuses, report, pool.rollouts)
    with stops_on_signal(pool.stop):
        try:
            pool.run(deque(cells), tally)
        finally:
            pool.kill()
    return tally.result(folder=address, stopping=pool.stopping)


class _Worker:
    """A worker process, its pipe and its assigned cells."""

    def __init__(self, process: Any, connection: Connection, slot: int) -> None:
        self.process, self.connection, self.slot = process, connection, slot
        self.cells: deque[Cell] = deque()
        """Cells still to do; the first is running."""
        self.ready = False


class _Pool:
    """The worker processes, and the memory that they share."""

    def __init__(self, engine: str, address: str, size: int) -> None:
        self._context = mp.get_context("spawn")
        self._engine, self._address, self._size = engine, address, size
        self._stop = self._context.RawValue(ctypes.c_int, 0)
        self._counters = self._context.RawArray(ctypes.c_longlong, max(1, size))
        self._workers: list[_Worker] = []
        self._deaths: Counter[str] = Counter()
        self._false_starts = 0
        self._recent: deque[float] = deque(maxlen=_LARGEST_CHUNK)

    @property
    def stopping(self) -> bool:
        return bool(self._stop.value)

    def rollouts(self) -> int:
        return sum(self._counters)

    def stop(self) -> bool:
        """Ask the cells to write a checkpoint and return; False where they were asked before."""
        asked_before, self._stop.value = self.stopping, 1
        return not asked_before

    def run(self, pending: deque[Cell], tally: Tally) -> None:
        """Assign cells to workers until none is left or the study stops."""
        while True:
            if not self.stopping:
                self._assign(pending)
            busy = [worker for worker in self._workers if worker.cells or not worker.ready]
            if not any(worker.cells for worker in busy) and (self.stopping or not pending):
                break
            self._receive(pending, tally)
            if tally.unwritable:
                self.stop()
            tally.update(running=sum(bool(w.cells) for w in self._workers), stopping=self.stopping)

    def _assign(self, pending: deque[Cell]) -> None:
        """Start workers for free slots, and give cells to idle workers."""
        taken = {worker.slot for worker in self._workers}
        idle = sum(not worker.cells for worker in self._workers)
        for slot in range(self._size):
            if slot not in taken and len(pending) > idle:
                self._workers.append(self._start(slot))
                idle += 1
        for worker in self._workers:
            if worker.ready and not worker.cells and pending:
                chunk = [pending.popleft() for _ in range(min(self._chunk(), len(pending)))]
                worker.cells.extend(chunk)
                with suppress(OSError):  # if it has just died, `_receive` takes the cells back
                    worker.connection.send(chunk)

    def _chunk(self) -> int:
        """The number of cells per message: many if cells are short, else one."""
        if not self._recent:
            return 1
        mean = sum(self._recent) / len(self._recent)
        return max(1, min(_LARGEST_CHUNK, int(_CHUNK_SECONDS / max(mean, 1e-9))))

    def _start(self, slot: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        threads = {name: os.environ.get(name) for name in _THREADS}
        process = self._context.Process(
            target=_work,
            args=(theirs, self._engine, self._address, self._stop, self._counters, slot, threads),
            name=f"isocompute-{slot}",
            daemon=False,  # an engine may start processes
        )
        # Block signals until the worker can handle them; a Ctrl-C during its imports would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            os.environ.update(dict.fromkeys(_THREADS, "1"))
            process.start()
        finally:
            _restore(threads)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Worker(process, ours, slot)

    def _receive(self, pending: deque[Cell], tally: Tally) -> None:
        """Handle messages and deaths of workers; waits for `_TICK` seconds at most."""
        sources: dict[Any, _Worker] = {}
        for worker in self._workers:
            sources[worker.connection] = sources[worker.process.sentinel] = worker
        ready = {id(worker): worker for worker in map(sources.__getitem__, wait(list(sources), _TICK))}
        for worker in ready.values():
            alive = worker.process.is_alive()  # checked first: then the pipe has all that it sent before its end
            try:
                while worker.connection.poll():
                    self._handle(worker, worker.connection.recv(), pending, tally)
            except (EOFError, OSError):
                alive = False
            if not alive:
                self._replace_dead(worker, pending, tally)

    def _handle(self, worker: _Worker, message: Any, pending: deque[Cell], tally: Tally) -> None:
        if isinstance(message, Outcome):
            worker.cells.popleft()
            self._recent.append(message.seconds)
            tally.add(message)
        elif message == "ready":
            worker.ready, self._false_starts = True, 0
        elif message == "stopped":
            pending.extendleft(worker.cells)
            worker.cells.clear()

    def _replace_dead(self, worker: _Worker, pending: deque[Cell], tally: Tally) -> None:
        """Retry the current cell of a dead worker a few times; the rest of its chunk is pending again."""
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts > RETRIES:
                raise InputError(
                    f"worker processes end before they begin ({_ending(worker.process.exitcode)}): they import the "
                    'script that starts the study, so put what it does under `if __name__ == "__main__":`; where '
                    f"that is done, see that engine '{self._engine}' can be imported from a new process."
                )
        pending.extendleft(reversed(list(worker.cells)[1:]))
        if worker.cells:
            cell = worker.cells[0]
            self._deaths[cell.name] += 1
            if self._deaths[cell.name] <= RETRIES:
                pending.appendleft(cell)
                return
            error = RuntimeError(
                f"its worker process died {self._deaths[cell.name]} times ({_ending(worker.process.exitcode)}); "
                "out of memory?"
            )
            if not files.is_remote(self._address):
                write_error(Path(self._address) / cell.name, error)
            tally.add(Outcome(cell.name, "failed", str(error)))

    def kill(self) -> None:
        """Kill the workers; the cells of busy ones resume from their checkpoints."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers.clear()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


class _SlotControl:
    """A cell's control through shared memory; a call costs less than a microsecond."""

    def __init__(self, stop: Any, counters: Any, slot: int) -> None:
        self._stop, self._counters, self._slot = stop, counters, slot

    def stopping(self) -> bool:
        return bool(self._stop.value)

    def advanced(self, rollouts: int) -> None:
        self._counters[self._slot] += rollouts


def _restore(environment: dict[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _work(
    connection: Connection,
    engine_name: str,
    address: str,
    stop: Any,
    counters: Any,
    slot: int,
    threads: dict[str, str | None],
) -> None:
    """The main function of a worker process: receives cells and sends outcomes."""
    for number in STOP_SIGNALS:
        # The runner decides when to stop. External trainers would inherit SIG_IGN, so use an empty handler.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    engine = load_engine(engine_name)
    _restore(threads)  # external trainers get the user's environment
    control = _SlotControl(stop, counters, slot)
    connection.send("ready")
    while True:
        try:
            chunk: list[Cell] = connection.recv()
        except EOFError:
            return
        for cell in chunk:
            if not control.stopping():
                connection.send(execute(engine=engine, cell=cell, address=address, control=control))
            if control.stopping():
                connection.send("stopped")
                break


def _end_with_parent() -> None:
    """End this worker if its runner is killed, since the next runner resumes the same cells."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _silent(_: Progress) -> None:
    pass


def run(
    *,
    spec: str | Path,
    out: str | Path | None = None,
    workers: int | None = None,
    on: str = "local",
    fork: bool = False,
    report: Report = _silent,
) -> Result:
    """Run a study: finished cells are skipped, and interrupted ones resume from their checkpoints.

    `out` is the study's folder, by default named after the spec's file; `on` is `local`, `ray` or `ray=ADDRESS`.
    """
    name = str(spec)
    return run_spec(files.read_bytes(name), name=name, out=out, workers=workers, on=on, fork=fork, report=report)


def run_spec(
    data: bytes,
    *,
    name: str,
    out: str | Path | None = None,
    workers: int | None = None,
    on: str = "local",
    fork: bool = False,
    report: Report = _silent,
) -> Result:
    """Like `run`, for the bytes of a spec; `name` is its name in error messages."""
    where, _, ray_address = on.partition("=")
    if where not in ("local", "ray") or (ray_address and where == "local"):
        raise InputError(f"--on {on}: it is 'local', 'ray' or 'ray=ADDRESS'.")
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: give at least one.")
    parsed = parse_spec(data, name=name)
    all_cells = cells(parsed)
    check_cells(load_engine(parsed.engine), all_cells, budget=parsed.budget.rollouts, name=name)
    folder = StudyFolder(out if out is not None else Path(files.last_part(name)).stem)
    if fork:
        folder = folder.fork()
    elif out is None and files.exists(folder.address) and not files.is_folder(folder.address):
        raise InputError(
            f"{name}: the study's folder is by default the spec's name without its ending, and {folder.address} is a "
            "file; give --out."
        )
    folder.create()
    with folder.locked():
        folder.adopt(parsed, data)
        statuses = folder.status(all_cells)
        if where == "ray":
            from isocompute.sweep.ray import run_ray

            return run_ray(
                engine=parsed.engine,
                statuses=statuses,
                address=folder.address,
                resources=parsed.resources,
                cluster=ray_address or None,
                report=report,
            )
        return run_local(
            engine=parsed.engine, statuses=statuses, address=folder.address, workers=workers, report=report
        )


def status(*, folder: str | Path) -> list[CellStatus]:
    """The state of each cell, from the study's files."""
    return StudyFolder(folder).status()
