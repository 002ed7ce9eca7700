"""Accelerators by name: memory, bandwidth and dense bf16 peak, from `gpus.toml`."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from isocompute.errors import InputError

__all__ = ["Gpu", "find_gpu", "gpus"]


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
    table = tomllib.loads(files("isocompute.plan").joinpath("gpus.toml").read_text(encoding="utf-8"))
    return {
        name: Gpu(name, row["memory"] * 1e9, row["bandwidth"] * 1e9, row["peak"] * 1e12, row["source"])
        for name, row in table.items()
    }


def find_gpu(name: str) -> Gpu:
    """A GPU by name, however it is written (`h200`, `NVIDIA H200`, `RTX 4090`, `A100-SXM4-80GB`).

    >>> find_gpu("NVIDIA RTX 4090").memory
    24000000000.0
    """
    known = {_plain(each): gpu for each, gpu in gpus().items()}
    wanted = _plain(name)
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.0)
    raise InputError(
        f"gpu '{name}' is not one of {', '.join(gpus())}; the nearest is {known[near[0]].name}: name it, or give "
        "the throughput instead."
    )


def _plain(name: str) -> str:
    """Lower-case letters and digits without the maker's words; 80 GB is what H100 and A100 mean by default."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return "".join(
        w for w in words if w not in ("nvidia", "geforce", "rtx", "tesla", "hgx", "80gb", "hbm3", "sxm", "sxm4", "sxm5")
    )
