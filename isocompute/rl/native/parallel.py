"""Work of the C library on as many threads as torch has: a call without the interpreter's lock for each part."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["spread"]

_Answer = TypeVar("_Answer")


def spread(work: Callable[[int, int], _Answer], count: int, *, least: int) -> list[_Answer]:
    """`work(first, last)` for every part of 0 … count, in order; a part has at least `least`, so little is one part."""
    parts = max(1, min(torch.get_num_threads(), count // least))
    edges = [count * i // parts for i in range(parts + 1)]
    if parts == 1:
        return [work(0, count)]
    return list(_pool(torch.get_num_threads()).map(work, edges[:-1], edges[1:]))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="isocompute-native")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a forked process
