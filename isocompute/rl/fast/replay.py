"""Fixed work on the device, called again and again: on a GPU a CUDA graph, elsewhere a plain call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch

__all__ = ["Replay"]

Result = TypeVar("Result")


class Replay(Generic[Result]):
    """A body of fixed shapes that reads and writes buffers in place. On a GPU its first call warms it up and captures
    it, on the stream that is current then; what the body returned stands in the graph's memory from then on.

    Graphs of different streams may run at the same time: a library's work space belongs to the stream of the capture.
    """

    def __init__(
        self, body: Callable[[], Result], *, on_gpu: bool, warm_up: Callable[[], object] | None = None
    ) -> None:
        self._body, self._on_gpu, self._warm_up = body, on_gpu, warm_up or body
        self._graph: Any = None
        self._result: Result | None = None

    def __call__(self) -> Result:
        """Do the work; what it returns is overwritten by the next call."""
        if not self._on_gpu:
            return self._body()
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()
        return cast(Result, self._result)

    def _capture(self) -> Any:
        stream = torch.cuda.current_stream()
        if stream == torch.cuda.default_stream():  # which cannot be captured
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._warm_up()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has memory of its own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._result = self._body()
        return graph
