"""A tiny deterministic engine: a random walk that checkpoints every few steps and misbehaves when it is told to."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from isocompute.core.allocation import Cell, Control
from isocompute.core.errors import InputError
from isocompute.core.recorder import Recorder, RunSettings


class FakeEngine:
    """Options: `every` steps a checkpoint, `pause` seconds a step, and `crash`, `die`, `full`, `wait`: lists of cells.

    `die` kills the worker at its third step, `die_once` only in the first attempt, `wait` waits until stopped;
    `deaf` are those that then go on to their end all the same. `ends` are updates after which a cell has no more to do.
    """

    def check(self, cell: Cell) -> None:
        if cell.recipe.get("refused"):
            raise InputError("recipe.refused: this engine refuses it.")

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        made = Recorder(
            folder,
            RunSettings(
                problems_per_batch=cell.problems_per_batch,
                rollouts_per_problem=cell.rollouts_per_problem,
                update_steps=cell.update_steps,
                seed=cell.seed,
                engine="fake",
            ),
        )
        with closing(made) as recorder:
            return self._walk(cell, folder, control, recorder)

    def _walk(self, cell: Cell, folder: Path, control: Control, recorder: Recorder) -> bool:
        options = cell.engine
        every = int(options.get("every", 5))
        state = recorder.resume()
        rng = np.random.default_rng([cell.seed, cell.problems_per_batch, cell.rollouts_per_problem])
        walk, first = np.zeros(3), 0
        if state is not None:
            arrays, meta = state
            walk, first = arrays["walk"], int(meta["step"])
            rng.bit_generator.state = meta["rng"]
        for step in range(first + 1, cell.update_steps + 1):
            self._misbehave(cell, folder, step, control)
            time.sleep(float(options.get("pause", 0.0)))
            walk = walk + rng.standard_normal(3)
            recorder.append({"step": step, "rollouts": step * cell.batch_size, "avg@4": float(np.tanh(walk).mean())})
            control.advanced(cell.batch_size)
            if step == int(options.get("ends", 0)):
                recorder.finish({"rollouts": step * cell.batch_size, "ended": "no more to do"})
                return True
            stopping = control.stopping() and cell.name not in options.get("deaf", ())
            if (step % every == 0 or stopping) and step < cell.update_steps:
                recorder.checkpoint({"walk": walk}, {"step": step, "rng": rng.bit_generator.state})
                if stopping:
                    return False
        recorder.finish()
        return True

    def _misbehave(self, cell: Cell, folder: Path, step: int, control: Control) -> None:
        options = cell.engine
        if step != 3:
            return
        if cell.name in options.get("crash", ()):
            raise ZeroDivisionError("told to crash")
        if cell.name in options.get("full", ()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        once = folder / "died"
        if cell.name in options.get("die_once", ()) and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.name in options.get("die", ()):
            with (folder / "deaths").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.name in options.get("wait", ()):
            while not control.stopping():
                time.sleep(0.01)


class ThreadsEngine(FakeEngine):
    """The same; writes down the threads of BLAS, and those that the environment gives to an outside program."""

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        found = {library["num_threads"] for library in threadpool_info()}
        (folder / "threads").write_text(f"{sorted(found)} {os.environ.get('OMP_NUM_THREADS')}")
        return super().run(cell, folder, control)
