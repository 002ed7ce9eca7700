"""veRL writes an isocompute run folder while it trains.

    export PYTHONPATH=examples:$PYTHONPATH ISOCOMPUTE_RUN=$PWD/runs/32x8
    python3 -m verl.trainer.main_ppo … \
        '+ray_kwargs.ray_init.runtime_env.worker_process_setup_hook=verl_live.install'

veRL logs through one class, `verl.utils.tracking.Tracking`, which hands every row to each of its loggers. The hook,
which Ray runs in every process it starts, adds one more logger to it; the others (`trainer.logger`) stay as they are.
Read against veRL 0.9.1. On a cluster the folder must be one that the task runner's node can write to.
"""

from __future__ import annotations

import atexit
import os
from typing import Any


def install() -> None:
    """Make every `Tracking` of this process log to a run folder too."""
    folder = os.environ.get("ISOCOMPUTE_RUN")
    if not folder:
        return
    try:
        from verl.utils.tracking import Tracking
    except ImportError:  # a process of Ray's own, without veRL
        return
    if getattr(Tracking, "isocompute", False):
        return
    begin = Tracking.__init__

    def begin_with_run_folder(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.logger["isocompute"] = RunFolderLogger(folder, kwargs.get("config") or {})

    Tracking.__init__ = begin_with_run_folder
    Tracking.isocompute = True


class RunFolderLogger:
    """A logger as `Tracking` expects one."""

    def __init__(self, folder: str, config: dict[str, Any]) -> None:
        from isocompute.data.live import LiveRun

        self._run = LiveRun(folder, engine="verl", config=config)
        atexit.register(self._run.close)  # veRL never says that it ends

    def log(self, data: dict[str, Any], step: int) -> None:
        """One row; the point is written at once."""
        self._run.log(step, data)
        self._run.flush()
