"""Files and folders by address: local paths directly, addresses with `://` through fsspec (the `remote` extra)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from isocompute.core.errors import InputError


def is_remote(address: str) -> bool:
    """Whether fsspec handles this address."""
    return "://" in address


def _remote(address: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise InputError(f"{address}: remote addresses need fsspec; pip install 'isocompute[remote]'.") from error
    system, path = fsspec.core.url_to_fs(address)
    return system, str(path)


@contextmanager
def _reading(address: str) -> Iterator[None]:
    """Turn failures to read an address into `InputError`; a remote file system may raise any exception."""
    wrong = (Exception,) if is_remote(address) else (OSError, ValueError)
    try:
        yield
    except InputError:
        raise
    except wrong as error:
        raise InputError(f"{address}: cannot be read ({_short(error)}).") from error


def read_bytes(address: str) -> bytes:
    """The whole file."""
    with _reading(address):
        if is_remote(address):
            system, path = _remote(address)
            return bytes(system.cat_file(path))
        return Path(address).read_bytes()


def exists(address: str) -> bool:
    """Whether there is a file or folder."""
    with _reading(address):
        if is_remote(address):
            system, path = _remote(address)
            return bool(system.exists(path))
        return Path(address).exists()


def is_folder(address: str) -> bool:
    """Whether the address is an existing folder."""
    with _reading(address):
        if is_remote(address):
            system, path = _remote(address)
            return bool(system.isdir(path))
        return Path(address).is_dir()


def children(address: str) -> list[str]:
    """Addresses of a folder's entries, sorted."""
    with _reading(address):
        if is_remote(address):
            system, path = _remote(address)
            scheme = address.split("://", 1)[0]
            return sorted(f"{scheme}://{str(p).split('://', 1)[-1]}" for p in system.ls(path, detail=False))
        return sorted(str(p) for p in Path(address).iterdir())


def last_part(address: str) -> str:
    """The name of a file or folder, also of `.` and `..`."""
    name = address.rstrip("/").rsplit("/", 1)[-1]
    return Path(address).resolve().name if name in ("", ".", "..") and not is_remote(address) else name


def join(address: str, name: str) -> str:
    """An entry of a folder."""
    return f"{address.rstrip('/')}/{name}"


def write_atomically(path: Path, data: bytes | Callable[[BinaryIO], None]) -> None:
    """Write to a temporary name beside the target, then rename: readers see the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                if callable(data):
                    data(file)
                else:
                    file.write(data)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({_short(error)}).") from error


def _short(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
