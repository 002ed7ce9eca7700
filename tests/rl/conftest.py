"""Models this small are faster on one thread, and tests run beside each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three things that Triton's interpreter lacks: one-element arrays as ints, which numpy has stopped to allow;
    products of bf16 numbers, which it takes for 16-bit integers; rounding to bf16, where it cuts.
    """
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:  # Triton runs on Linux alone
        return
    patch_tensor, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot
    convert = interpreter._convert_float

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def rounded(data: Any, from_type: Any, to_type: Any, mode: Any) -> Any:
        if (from_type, to_type) == (tl.float32, tl.bfloat16):
            bits = data.view(np.uint32)
            data = (bits + 0x7FFF + ((bits >> 16) & 1)).view(np.float32)
        return convert(data, from_type, to_type, mode)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest),
    )
