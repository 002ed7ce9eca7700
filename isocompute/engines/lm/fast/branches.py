"""Small work of several cells at the same time: on a GPU each on a stream of its own, also inside a CUDA graph.

A cell's losses and optimiser are some hundred kernels of a few microseconds, most of which one cell's data cannot fill
a GPU with. One after another they would cost a stack of 16 cells a sixth of its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

__all__ = ["Branches"]

Result = TypeVar("Result")


class Branches:
    """Streams that part from the current one and come back to it."""

    def __init__(self, count: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda" and count > 1
        self._streams: list[Any] = [torch.cuda.Stream(device) for _ in range(count)] if on_gpu else []  # type: ignore[no-untyped-call]  # torch's own annotation is missing

    def each(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """What the calls return, in their order.

        Memory is safe without further ado: a branch begins after all that came before on the main stream, and that one
        goes on after all branches, so nothing is given to another while it is still read.
        """
        if not self._streams:
            return [call() for call in calls]
        main, out, begun = torch.cuda.current_stream(), [], []
        try:
            for call, stream in zip(calls, self._streams, strict=True):
                stream.wait_stream(main)
                begun.append(stream)
                with torch.cuda.stream(stream):
                    out.append(call())
        finally:  # a capture ends only where all its branches have come back
            for stream in begun:
                main.wait_stream(stream)
        return out
