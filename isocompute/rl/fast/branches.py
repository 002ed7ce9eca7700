"""Small work at the same time: on a GPU each on a stream of its own, also inside a CUDA graph.

A cell's losses and optimiser are some hundred kernels of a few microseconds, most of which one cell's data cannot fill
a GPU with. One after another they would cost a stack of 16 cells a sixth of its step; so would verification, which can
go beside the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

__all__ = ["Beside", "Branches"]

Result = TypeVar("Result")


class Beside(Generic[Result]):
    """What branches compute while the stream that they parted from goes on."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        """Theirs, in the order of the calls; on a GPU to be read behind `wait` alone."""
        self._begun: list[Any] = []

    def wait(self) -> None:
        """Let the current stream go on when all branches are done; a second time it costs nothing."""
        for stream in self._begun:
            torch.cuda.current_stream().wait_stream(stream)
        self._begun = []


class Branches:
    """Streams that part from the current one and come back to it."""

    def __init__(self, count: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._streams: list[Any] = [torch.cuda.Stream(device) for _ in range(count)] if on_gpu else []  # type: ignore[no-untyped-call]  # torch's own annotation is missing

    @contextmanager
    def beside(self, calls: Sequence[Callable[[], Result]]) -> Iterator[Beside[Result]]:
        """Begin the calls, each on its branch; they have come back at the end at the latest.

        Memory is safe without further ado where results live as long as this: a branch begins after all that came
        before on the main stream, and that one goes on after all branches, so nothing is given to another while it is
        still read.
        """
        out = Beside[Result]()
        try:
            if not self._streams:
                out.results = [call() for call in calls]
            else:
                # One event for all: PyTorch's pool of streams is small, and the current one may be a branch, too.
                fork = torch.cuda.current_stream().record_event()
                for call, stream in zip(calls, self._streams, strict=True):
                    stream.wait_event(fork)
                    out._begun.append(stream)
                    with torch.cuda.stream(stream):
                        out.results.append(call())
            yield out
        finally:  # a capture ends only where all its branches have come back
            out.wait()

    def each(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """What the calls return, in their order, when all are done. A single one needs no branch."""
        if len(calls) == 1:
            return [calls[0]()]
        with self.beside(calls) as begun:
            return begun.results
