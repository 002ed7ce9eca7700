"""One thread a worker: a study fills the cores with cells, and BLAS threads beneath them would only fight for these.

BLAS reads the variables when numpy is loaded, so they must be in the environment before the worker starts. An outside
trainer is no such worker: `outside()` gives it the environment the user started the study with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["outside", "single_threaded", "worker_environment"]

_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_KEPT = "ISOCOMPUTE_THREADS"


def worker_environment() -> dict[str, str]:
    """What a worker's environment adds to that of this process."""
    kept = os.environ.get(_KEPT) or json.dumps({name: os.environ.get(name) for name in _VARIABLES})
    return {_KEPT: kept, **dict.fromkeys(_VARIABLES, "1")}


@contextmanager
def single_threaded() -> Iterator[None]:
    """Processes started inside compute with one thread; this process keeps its own environment."""
    added = worker_environment()
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        _restore(os.environ, before)


def outside() -> dict[str, str]:
    """The environment of a program that is not a worker of ours."""
    environment = dict(os.environ)
    _restore(environment, json.loads(environment.pop(_KEPT, "{}")))
    return environment


def _restore(environment: os._Environ[str] | dict[str, str], before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
