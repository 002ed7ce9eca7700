"""Engines by name, imported when a study needs them: the command engine must not load the simulator, nor torch."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import cast

from isocompute.engines.base import Engine
from isocompute.errors import InputError

__all__ = ["ENGINES", "check_name", "load_engine"]

ENGINES = {
    "sim": "isocompute.engines.sim:SimEngine",
    "lm": "isocompute.engines.lm.engine:LmEngine",
    "command": "isocompute.engines.command:CommandEngine",
}
_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_name(name: str) -> None:
    """Refuse a name that cannot be an engine, without importing anything."""
    if name not in ENGINES and not _DOTTED.fullmatch(name):
        raise InputError(f"'{name}' is not one of {', '.join(ENGINES)}; your own is written package.module:Class")


def load_engine(name: str) -> Engine:
    """The engine with this name, or the class at `package.module:Class` (the working directory is searched too)."""
    check_name(name)
    module, _, attribute = ENGINES.get(name, name).partition(":")
    here = str(Path.cwd())
    if name not in ENGINES and here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        if name == "lm" and isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("isocompute"):
            raise InputError(f"engine 'lm' needs {error.name}; pip install 'isocompute[lm]'.") from error
        raise InputError(f"engine '{name}' cannot be loaded: {error}.") from error
    return cast(Engine, made)
