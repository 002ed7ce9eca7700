"""Cells of a study that share one GPU in one process.

Alone, a small cell leaves most of a GPU idle: its step is hundreds of short kernels one after another. Cells of one
shape are stacked, so that each of these kernels does the work of all of them (`fast.stack`); different shapes run side
by side, each unit's graph on a stream of its own. As soon as one unit ends, cells that wait take its room.

Every cell stays a run of its own, with its own folder, points, checkpoints and end: between two updates it is
`Session.turns` that goes on, as it would alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from isocompute.rl.fast.stack import stacks_with
from isocompute.rl.fast.training import FastTraining
from isocompute.rl.session import Session
from isocompute.rl.unit import Ended, Member, TooLargeError, Unit, built, load_of
from isocompute.sweep.base import Cell, Control

__all__ = ["run_together"]

_FULL = 8192
"""Rollouts of the small built-in model's size that fill a GPU: beyond, cells gain nothing from each other's company."""

Jobs = Iterator[tuple[Cell, Path, Control]]
OnPoint = Callable[[Mapping[str, Any]], None] | None


def run_together(jobs: Iterable[tuple[Cell, Path, Control]], *, on_point: OnPoint = None) -> Iterator[Ended]:
    """Run cells whose steps are captured ones; tells of each as it ends, in whatever order they do."""
    pack = _Pack(iter(jobs), on_point)
    while True:
        yield from pack.fill()
        if not pack.units:
            return
        yield from pack.turn()


class _Pack:
    """All units under way, and the cells that wait. What has ended is held by nothing here: its memory is the next
    cells'.
    """

    def __init__(self, waiting: Jobs, on_point: OnPoint) -> None:
        self.units: list[Unit] = []
        self._waiting, self._on_point, self._room = waiting, on_point, True

    def fill(self) -> list[Ended]:
        """Begin cells where there is room, until something runs or nothing waits; those that have ended already."""
        ended: list[Ended] = []
        while self._room:
            self._room = False
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            members, failed = _open(self._waiting, self._on_point, taken=sum(unit.load for unit in self.units))
            if not members and not failed:
                break
            ended += failed
            for same in _grouped(members):
                units, failed = built(same)
                self.units += units
                ended += failed
            ended += self._shared()
        return ended

    def turn(self) -> list[Ended]:
        """An update of every unit that the device has room for; the cells that ended."""
        ready = [unit for unit in self.units if unit.ready()]
        if not ready:
            self.units[0].wait()
        ended: list[Ended] = []
        for unit in ready:
            split = False
            try:
                ended += unit.turn()
            except TooLargeError:
                split = True  # and not here: the error holds what did not fit
            if split:
                units, failed = unit.halves()
                place = self.units.index(unit)
                self.units[place : place + 1] = units
                ended += failed
        if ended:
            ended += self._shared()
        return ended

    def _shared(self) -> list[Ended]:
        """From now on each cell has its part of the device's time, by its load; those that end by being looked at."""
        total = sum(load_of(member.training) for unit in self.units for member in unit.members)
        ended = [one for unit in self.units for one in unit.share(total)]
        under_way = [unit for unit in self.units if unit.members]
        self._room |= len(under_way) < len(self.units) or not under_way
        self.units = under_way
        return ended


def _open(waiting: Jobs, on_point: OnPoint, *, taken: float) -> tuple[list[Member], list[Ended]]:
    """Begin cells while there is room, always one where nothing else runs; and those that could not begin."""
    opened: list[Member] = []
    failed: list[Ended] = []
    last = 0.0
    while taken + last <= _FULL or not taken:  # the next is likely to be as large as the last
        job = next(waiting, None)
        if job is None:
            break
        cell, folder, control = job
        closing = ExitStack()
        try:
            session = closing.enter_context(Session(cell, folder, on_point=on_point))
            assert isinstance(session.training, FastTraining), "others run alone (`setup.can_share`)"
        except Exception as error:  # whatever `Engine.run` would raise: the other cells go on
            closing.close()
            failed.append((cell, error))
            continue
        opened.append(Member(session, session.training, session.turns(control), closing))
        last = load_of(session.training)
        taken += last
    return opened, failed


def _grouped(members: Sequence[Member]) -> list[list[Member]]:
    """Members of one shape together, as many as fit one pass, the others each alone."""
    alike: dict[Any, list[Member]] = {}
    for member in members:
        key = stacks_with(member.training)
        alike.setdefault(id(member) if key is None else key, []).append(member)
    groups = []
    for same in alike.values():
        training = same[0].training
        most = max(1, training.sizes.micro_batch // training.cell.batch_size)
        groups += [same[start : start + most] for start in range(0, len(same), most)]
    return groups
