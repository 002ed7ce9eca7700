"""Helpers that import one log and read its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from isocompute.data.importing import Imported, import_logs

Write = Callable[..., Path]


def one(path: Path, **kwargs: Any) -> Imported:
    (item,) = import_logs(path, **kwargs)
    return item


def column(item: Imported, name: str) -> list[Any]:
    values: list[Any] = item.run.points[name].to_list()
    return values
