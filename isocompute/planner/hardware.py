"""Accelerators by name: memory, bandwidth and dense bf16 peak, from `gpus.toml`."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from isocompute.core.errors import InputError

__all__ = ["Gpu", "find_gpu", "gpus"]

_PLAIN_WORDS = (
    "nvidia",
    "geforce",
    "rtx",
    "tesla",
    "hgx",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "sxm",
    "sxm4",
    "sxm5",
    "pcie",
)
"""Words that do not tell chips apart."""
_SAME_MEMORY = 0.1
"""Sizes in names are rounded: a B200 is sold as 180 and as 192 GB."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator; bytes, bytes a second, FLOP a second."""

    name: str
    memory: float
    bandwidth: float
    peak: float
    source: str

    @property
    def ridge(self) -> float:
        """FLOPs a byte above which compute is what limits."""
        return self.peak / self.bandwidth


@cache
def gpus() -> dict[str, Gpu]:
    """The table, by name."""
    table = tomllib.loads(files("isocompute.planner").joinpath("gpus.toml").read_text(encoding="utf-8"))
    return {
        name: Gpu(name, row["memory"] * 1e9, row["bandwidth"] * 1e9, row["peak"] * 1e12, row["source"])
        for name, row in table.items()
    }


def find_gpu(name: str) -> Gpu:
    """A GPU by name, however it is written (`h200`, `RTX4090`, `A100-SXM4-80GB`, `NVIDIA A100 80GB PCIe`).

    A memory size in the name has to be the GPU's; `PCIe` picks that card where the table tells it apart.

    >>> find_gpu("NVIDIA RTX 4090").memory, find_gpu("NVIDIA A100 80GB PCIe").name
    (24000000000.0, 'A100-PCIe')
    """
    wanted = _Written.of(name)
    chips = {each: _Written.of(each).chip for each in gpus()}
    alike = [gpu for each, gpu in gpus().items() if chips[each] == wanted.chip]
    fitting = [gpu for gpu in alike if wanted.memory is None or abs(gpu.memory / wanted.memory - 1) < _SAME_MEMORY]
    if fitting:
        return min(fitting, key=lambda gpu: _Written.of(gpu.name).pcie != wanted.pcie)  # the first row of a tie
    near = set(difflib.get_close_matches(wanted.chip, dict.fromkeys(chips.values()), n=2))
    names = [each for each, chip in chips.items() if chip in near or chip == wanted.chip]
    hint = f"; near it {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else ""
    raise InputError(f"gpu '{name}' is not one of {', '.join(gpus())}{hint}: name one, or give the throughput instead.")


@dataclass(frozen=True)
class _Written:
    """What a name says of a GPU."""

    chip: str
    memory: float | None
    pcie: bool

    @classmethod
    def of(cls, name: str) -> _Written:
        words = re.split(r"[^a-z0-9]+", re.sub(r"(\d+)\s*gb?\b", r" \1gb ", name.lower()))
        sizes = [float(word.removesuffix("gb")) * 1e9 for word in words if re.fullmatch(r"\d+gb", word)]
        chip = "".join(w for w in words if w not in _PLAIN_WORDS and not re.fullmatch(r"\d+gb", w))
        return cls(re.sub(r"^(geforce)?rtx(?=\d)", "", chip), sizes[0] if sizes else None, "pcie" in words)
