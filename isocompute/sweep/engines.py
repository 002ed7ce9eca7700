"""Engines by name, imported when a study needs them: the command engine must not load the simulator, nor torch."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import cast

from isocompute.core.cell import Engine
from isocompute.core.errors import InputError

__all__ = ["ENGINES", "check_name", "load_engine"]

ENGINES = {
    "sim": "isocompute.sim:SimEngine",
    "lm": "isocompute.rl.engine:LmEngine",
    "command": "isocompute.sweep.command:CommandEngine",
}
_METHODS = ("check", "run")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_name(name: str) -> None:
    """Refuse a name that cannot be an engine, without importing anything."""
    if name not in ENGINES and not _DOTTED.fullmatch(name):
        raise InputError(f"'{name}' is not one of {', '.join(ENGINES)}; your own is written package.module:Class")


def load_engine(name: str) -> Engine:
    """The engine with this name, or the class at `package.module:Class` (the working directory is searched too)."""
    check_name(name)
    return _load_own(name) if name not in ENGINES else _load_ours(name)


def _load_ours(name: str) -> Engine:
    try:
        return _made(ENGINES[name])
    except ImportError as error:
        if name == "lm" and isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("isocompute"):
            raise InputError(f"engine 'lm' needs {error.name}; pip install 'isocompute[lm]'.") from error
        raise InputError(f"engine '{name}' cannot be loaded: {error}.") from error


def _load_own(name: str) -> Engine:
    """A user's class: whatever it does when it is imported and made, it is the user's to mend."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = _made(name)
    except InputError:
        raise  # its own words
    except (Exception, SystemExit) as error:  # a script without a guard ends the process
        raise InputError(f"engine '{name}' cannot be loaded: {_told(error)}.") from error
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise InputError(
            f"engine '{name}' has no method {' and no '.join(missing)}; an engine is a class with "
            f"{' and '.join(_METHODS)} (docs/study.md)."
        )
    return made


def _made(address: str) -> Engine:
    module, _, attribute = address.partition(":")
    return cast(Engine, getattr(importlib.import_module(module), attribute)())


def _told(error: BaseException) -> str:
    """An error with its type, and the line that raised it where that is not ours."""
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return told  # it names its own
    frames = traceback.extract_tb(error.__traceback__)
    ours = (__file__, importlib.__file__)
    theirs = [frame for frame in frames if frame.filename not in ours and not frame.filename.startswith("<frozen ")]
    return f"{told} ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else told
