"""Which keys of a run's settings do not say how it was made, and so make no difference to what it can be compared with.

A module of its own, since the web app's first look at a study reads settings without the table library.
"""

from __future__ import annotations

__all__ = ["CIRCUMSTANCES"]

CIRCUMSTANCES = frozenset(
    (
        *("problems_per_batch", "rollouts_per_problem", "update_steps", "seed", "gpus", "versions"),
        *("device", "micro_batch", "sample_batch", "threads", "together", "workers"),
        *("host", "hostname", "user", "pid", "date", "time", "timestamp", "created", "started", "finished"),
    )
)
"""A run's allocation and seed, and where, when and how fast it ran: runs that differ in these alone are repetitions."""
