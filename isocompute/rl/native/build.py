"""The C library of this folder: compiled once for a processor, kept in the user's cache.

Without a compiler, or with one that fails, there is no library, and sampling goes the plain way.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["call", "library", "loaded"]

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("generate.c", "train.c"))
_HEADER = Path(__file__).with_name("vectors.h")
_FLAGS = ("-std=c11", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
"""Nothing that reorders sums: a row's numbers must not depend on how the compiler groups them."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where they cannot be had."""
    for compiler in filter(None, map(shutil.which, ("cc", "gcc", "clang"))):
        with suppress(OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: a user without a home
            return ctypes.CDLL(str(_compiled(compiler)))
    return None


def loaded() -> ctypes.CDLL:
    """The library, for those who have made sure that there is one."""
    found = library()
    assert found is not None
    return found


def call(name: str, *arguments: Any) -> None:
    """A function of the library. Arrays go in as the addresses of their numbers, and have to be without gaps."""
    if getattr(loaded(), name)(*(_plain(argument) for argument in arguments)):
        raise MemoryError(f"there is no memory for {name}.")


def _plain(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    return ctypes.c_float(argument) if isinstance(argument, float) else argument


def _compiled(compiler: str) -> Path:
    """The library's file, which is named by all that it depends on."""
    known = "\n".join([compiler, *_FLAGS, platform.machine(), _processor()]).encode()
    texts = b"".join(path.read_bytes() for path in (_HEADER, *_SOURCES))
    target = _folder() / f"native-{hashlib.sha256(known + texts).hexdigest()[:16]}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            command = [compiler, *_FLAGS, "-shared", "-fPIC", *map(str, _SOURCES), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            made.replace(target)
    return target


def _folder() -> Path:
    """Where compiled files are kept: a folder that belongs to this user alone."""
    asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (asked if asked.is_absolute() else Path.home() / ".cache") / "isocompute"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if hasattr(os, "getuid") and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
        raise OSError(f"others can write to {folder}.")
    return folder


def _processor() -> str:
    """What this processor can do: a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
