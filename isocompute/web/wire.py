"""Frozen dataclasses of numbers, text and arrays as bytes, between this program's own processes.

JSON for what they are made of, raw memory for arrays, and only classes that are listed: nothing that is read can run.
An object that is in several places is written once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from isocompute.law.curve import Curve
from isocompute.law.families import FAMILIES, Family
from isocompute.law.fits import CurveFit, Ensemble
from isocompute.law.frontier import Frontier, Switch
from isocompute.law.law import EarlyFall, Law, RunFit, Tradeoff
from isocompute.law.optimum import Optimum
from isocompute.law.sensitivity import Slice
from isocompute.law.surface import LeftOut, Surface, Terms

__all__ = ["pack", "unpack"]

_CLASSES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(Curve, CurveFit, EarlyFall, Ensemble, Frontier, Law, LeftOut, Optimum, RunFit, Slice, Surface, Switch, Terms),
        Tradeoff,
    )
}
_FAMILIES = {family.name: family for family in FAMILIES}
_WORD = 8


def pack(value: Any) -> bytes:
    """An object of the classes above, or of plain data."""
    packer = _Packer()
    top = packer.put(value)
    head = json.dumps({"top": top, "objects": packer.objects}).encode()
    head += b" " * (-len(head) % _WORD)  # arrays begin on a word
    return len(head).to_bytes(_WORD, "little") + head + b"".join(packer.arrays)


def unpack(data: bytes) -> Any:
    """What was packed."""
    memory = bytearray(data)  # arrays may be written to, as those of a fit may
    size = int.from_bytes(memory[:_WORD], "little")
    head = json.loads(memory[_WORD : _WORD + size])
    made: list[Any] = []

    def get(item: Any) -> Any:
        if not isinstance(item, list):
            return item
        kind, *rest = item
        if kind == "array":
            dtype, shape, start = rest
            count = int(np.prod(shape))
            return np.frombuffer(memory, dtype, count, _WORD + size + start).reshape(shape)
        if kind == "object":
            return made[rest[0]]
        if kind == "family":
            return _FAMILIES[rest[0]]
        if kind == "dict":
            return {key: get(one) for key, one in rest}
        return tuple(get(one) for one in rest)

    for name, parts in head["objects"]:  # a part comes before the whole
        made.append(_CLASSES[name](**{key: get(one) for key, one in parts.items()}))
    return get(head["top"])


class _Packer:
    def __init__(self) -> None:
        self.objects: list[tuple[str, dict[str, Any]]] = []
        self.arrays: list[bytes] = []
        self._end = 0
        self._known: dict[int, int] = {}

    def put(self, value: Any) -> Any:
        """Plain data as it is; anything else as a list that says what it is."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, Family):
            return ["family", value.name]
        if isinstance(value, dict):
            return ["dict", *([key, self.put(one)] for key, one in value.items())]
        if isinstance(value, tuple):
            return ["tuple", *(self.put(one) for one in value)]
        if not is_dataclass(value) or type(value).__name__ not in _CLASSES:
            raise TypeError(f"{type(value).__name__} is not a class that is sent")
        if id(value) not in self._known:
            parts = {field.name: self.put(getattr(value, field.name)) for field in fields(value)}
            self._known[id(value)] = len(self.objects)
            self.objects.append((type(value).__name__, parts))
        return ["object", self._known[id(value)]]

    def _array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        data = value.tobytes()
        data += b"\0" * (-len(data) % _WORD)
        self.arrays.append(data)
        self._end += len(data)
        return ["array", value.dtype.str, list(value.shape), self._end - len(data)]
