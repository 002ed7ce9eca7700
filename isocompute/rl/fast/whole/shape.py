"""How a generation is divided among the blocks of the one kernel (`kernel.cu`), and what each has in shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from isocompute.rl.config import DecoderConfig

__all__ = ["Shape", "shape_for"]

_SHARED = 232_448
"""Bytes of shared memory that a block may have on Hopper."""
_WARPS, _SLAB = 8, 64
_RINGS = ((5, 5), (4, 4), (3, 4))
"""Stages of weights, and how many of the cache there must be room for beside them: what was fastest of those tried."""
_MOST_BLOCKS = 16
_WIDEST, _LARGEST_HEAD, _HEADS_OF_A_WARP = 256, 64, 4
_FEW_ROWS, _MOST_ROWS = 16, 64
"""Rows of a cluster of two blocks, and of a block alone."""


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


@dataclass(frozen=True)
class Shape:
    """What the kernel is compiled for."""

    config: DecoderConfig
    ranks: int
    """Blocks of a cluster, which share its rows and divide the weights."""
    tiles: int
    """Of sixteen rows: 1, 2 or 4."""
    unit: int
    """Rows of a cluster."""

    @property
    def few(self) -> bool:
        """Whether half of a tile is enough."""
        return self.unit <= 8

    @property
    def own_groups(self) -> int:
        """Key-value heads of a block."""
        return self.config.num_key_value_heads // self.ranks

    @property
    def own_kv(self) -> int:
        """Channels of a block's keys, and of its values."""
        return self.own_groups * self.config.head_dim

    @property
    def own_q(self) -> int:
        """Channels of its queries."""
        return self.config.num_attention_heads // self.ranks * self.config.head_dim

    @property
    def own_inner(self) -> int:
        """Channels of its part of the inner layer."""
        return self.config.intermediate_size // self.ranks

    @property
    def task_groups(self) -> int:
        """Key-value heads that one warp attends for, of one row: as many as it can, or fewer where other warps would
        be idle; 0 where there is no way.
        """
        groups, share = self.own_groups, self.config.num_attention_heads // self.config.num_key_value_heads
        able = [n for n in range(1, groups + 1) if groups % n == 0 and n * share <= _HEADS_OF_A_WARP]
        able = [n for n in able if _WARPS % (groups // n) == 0]
        return max((n for n in able if n == able[0] or self.unit * groups // n >= _WARPS), default=0)

    @property
    def slot_bytes(self) -> int:
        """Of a token's keys and values; the last 16 are empty."""
        return 4 * self.own_kv + 16

    @property
    def slots(self) -> int:
        """Tokens of a block of the cache: more where they are small, since each block is waited for."""
        return 32 if self.own_kv <= 96 else 16

    @property
    def head_columns(self) -> int:
        """Tokens of the vocabulary, in whole tiles."""
        return _up(self.config.vocab_size, 8)

    @property
    def weight_bytes(self) -> int:
        """All weights that a block reads for a token."""
        columns = self.own_q + 2 * self.own_kv + 2 * self.own_inner
        inputs = _up(self.own_q, 32) + self.own_inner
        layers = self.config.num_hidden_layers * (columns + inputs)
        return 2 * self.config.hidden_size * (self.head_columns + layers)

    @cached_property
    def _fixed(self) -> dict[str, int]:
        """Regions of shared memory beside the rings, in bytes."""
        c, rows = self.config, 16 * self.tiles
        wide = max(2 * (self.own_q + 2 * self.own_kv + 8), 2 * (self.own_inner + 8), 4 * (self.head_columns + 4))
        sent = self.tiles * c.hidden_size // _SLAB * 32 * _WARPS * (2 if self.few else 4) * 4
        barriers = 8 * (2 * _RINGS[0][0] + 2 * _MOST_BLOCKS + 3)
        return {
            "WIDE": rows * wide,
            "PARTS": rows * _WARPS * 4,
            "NORMS": 2 * c.hidden_size * (2 * c.num_hidden_layers + 1) + 4 * c.head_dim * c.num_hidden_layers,
            "ANGLES": 4 * rows * c.head_dim if self.tiles < 4 else 0,
            "INBOX": 2 * (self.ranks - 1) * sent,
            "BARRIERS": barriers + 4 * (4 * rows + 2),
            "NORMED": 2 * rows * (max(c.hidden_size, _up(self.own_q, 32)) + 8),
        }

    @property
    def _stage_bytes(self) -> int:
        return 2 * _SLAB * self.config.hidden_size

    @cached_property
    def stages(self) -> tuple[int, int]:
        """Stages of the rings of weights and of the cache; (0, 0) where there is no room for them."""
        room = _SHARED - sum(_up(size, 128) for size in self._fixed.values()) - 128
        for weights, least in _RINGS:
            cache = (room - weights * self._stage_bytes) // (self.slots * self.slot_bytes)
            if cache >= least:
                return weights, min(cache, _MOST_BLOCKS)
        return 0, 0

    @cached_property
    def places(self) -> dict[str, int]:
        """Where regions begin, and where the last ends; what must be zero at the start stands last."""
        weights, cache = self.stages
        sizes = {"WEIGHTS": weights * self._stage_bytes, **self._fixed, "CACHE": cache * self.slots * self.slot_bytes}
        out, at = {}, 0
        for name, size in sizes.items():
            out[name] = at if size else 0
            at += _up(size, 128)
        return {**out, "ZEROED": out["NORMED"], "END": at}

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.places["END"]

    @property
    def threads(self) -> int:
        """Eight warps that compute, one that asks for weights, one for the cache."""
        return 32 * (_WARPS + 2)

    def constants(self) -> dict[str, int | float]:
        """What the compiler is told."""
        c, (weights, cache) = self.config, self.stages
        return {
            "WIDTH": c.hidden_size,
            "HEADS": c.num_attention_heads,
            "GROUPS": c.num_key_value_heads,
            "HEAD": c.head_dim,
            "INNER": c.intermediate_size,
            "LAYERS": c.num_hidden_layers,
            "VOCABULARY": c.vocab_size,
            "QK_NORM": int(c.qk_norm),
            "BIAS": int(c.attention_bias),
            "EPSILON": c.rms_norm_eps,
            "ROOT_OF_HEAD": math.sqrt(c.head_dim),
            "RANKS": self.ranks,
            "TILES": self.tiles,
            "FEW": int(self.few),
            "SLOTS": self.slots,
            "TASK_GROUPS": self.task_groups,
            "WEIGHT_STAGES": weights,
            "CACHE_STAGES": cache,
            "WEIGHT_BYTES": self.weight_bytes,
            **{f"AT_{name}": place for name, place in self.places.items()},
        }

    @property
    def fits(self) -> bool:
        """Whether the kernel's tiles fit the model, and the rows the shared memory."""
        c, ranks = self.config, self.ranks
        return (
            c.hidden_size % _SLAB == 0
            and c.hidden_size <= _WIDEST
            and c.head_dim % 16 == 0
            and c.head_dim <= _LARGEST_HEAD
            and c.num_attention_heads % ranks == 0
            and c.num_key_value_heads % ranks == 0
            and c.intermediate_size % (32 * ranks) == 0
            and self.task_groups > 0
            and self.stages[0] > 0
        )


def shape_for(config: DecoderConfig, *, cells: int, cell_rows: int, blocks: int) -> Shape | None:
    """How to divide the rows of some cells among so many blocks; None where the kernel cannot do it.

    With few rows most of the time goes into taking in weights: two blocks divide them then, if all run at once. With
    more rows than all blocks hold, some wait for their turn.
    """
    for ranks, most in ((2, _FEW_ROWS), (1, _MOST_ROWS)):
        rows = -(-cell_rows // max(1, blocks // ranks // cells))
        if ranks > 1 and (rows > most or blocks // ranks < cells):
            continue
        for tiles in (1, 2, 4):
            shape = Shape(config, ranks, tiles, min(rows, 16 * tiles))
            if 16 * tiles >= min(rows, most) and shape.fits:
                return shape
    return None
