"""Columns that say where in training a row stands, not what was measured: clocks, counters, the learning rate."""

from __future__ import annotations

from isocompute.core.run import POINT_COLUMNS

__all__ = ["is_bookkeeping"]

_NAMES = {
    *POINT_COLUMNS,
    *("steps", "_step", "global_step", "iteration", "iter", "update", "batch", "epoch", "epochs", "done_frac"),
    *("time", "timestamp", "_timestamp", "wall_time", "walltime", "runtime", "_runtime"),
    *("elapsed", "elapsed_time", "elapsed_seconds", "epoch_time", "date"),
    *("samples", "consumed_samples", "num_tokens", "total_tokens", "num_input_tokens_seen", "total_flos"),
    *("lr", "learning_rate"),
}


def is_bookkeeping(name: str) -> bool:
    """Whether rows of one step may both have it and still say different things.

    >>> is_bookkeeping("training/epoch"), is_bookkeeping("_runtime"), is_bookkeeping("val_reward")
    (True, True, False)
    """
    return name.rsplit("/", 1)[-1].strip().lower() in _NAMES
