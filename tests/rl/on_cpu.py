"""Kernels of CUDA C++ compiled for this machine's CPU (`hopper_on_cpu.h`)."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import torch

from isocompute.rl.fast.whole.generation import sources_of
from isocompute.rl.fast.whole.shape import Shape

_HEADER = Path(__file__).with_name("hopper_on_cpu.h")
_MAIN = """
{includes}
extern "C" void run_{name}(int blocks, int threads, int bytes, void** arguments) {{
    cpu::launch({name}, blocks, threads, {ranks}, bytes, arguments);
}}
"""


class OnCpu:
    """Compiles kernels into a folder and runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def compile(self, shape: Shape, name: str) -> Any:
        """What `generation.compiled` does on a GPU."""
        ranks = shape.ranks if name == "generate" else 1
        includes = "\n".join(f'#include "{path}"' for path in (_HEADER, *sources_of(name)))
        text = _MAIN.format(includes=includes, name=name, ranks=ranks)
        options = [f"-D{key}={value}" for key, value in shape.constants().items()] if name == "generate" else []
        key = hashlib.sha256("\n".join([text, *options]).encode()).hexdigest()[:16]
        library = self.folder / f"{key}.so"
        if not library.exists():
            source = self.folder / f"{key}.cpp"
            source.write_text(text)
            flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
            subprocess.run(["g++", *flags, *options, str(source), "-o", str(library)], check=True, timeout=120)
        run = getattr(ctypes.CDLL(str(library)), f"run_{name}")

        def launch(
            *, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any], shared_mem: int
        ) -> None:
            values = [_plain(value) for value in args]
            places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            blocks = grid[0] if name == "generate" else 4  # the others take whatever grid there is
            run(blocks, block[0], shared_mem, places)

        return launch


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value)
