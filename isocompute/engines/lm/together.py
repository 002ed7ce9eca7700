"""Cells of a study that share one GPU in one process.

Alone, a small cell leaves most of a GPU idle: its step is hundreds of short kernels one after another. Cells of one
shape are stacked, so that each of these kernels does the work of all of them (`fast.stack`); different shapes run side
by side, each unit's graph on a stream of its own. As soon as one unit ends, cells that wait take its room.

Every cell stays a run of its own, with its own folder, points, checkpoints and end: between two updates it is
`Session.turns` that goes on, as it would alone.
"""

from __future__ import annotations

import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isocompute.engines.base import Cell, Control
from isocompute.engines.drive import Turns
from isocompute.engines.lm.fast.stack import StackedTrainings, stacks_with
from isocompute.engines.lm.fast.training import FastTraining
from isocompute.engines.lm.session import Session

__all__ = ["run_together"]

_FULL = 8192
"""Rollouts of the small built-in model's size that fill a GPU: beyond, cells gain nothing from each other's company."""
_SMALL = 2_000_000
"""Parameters of such a model."""
_AHEAD = 16
"""Updates of a unit that may wait on the device: enough to keep it busy while the host evaluates another unit."""

Ended = tuple[Cell, bool | Exception]
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
        self.units: list[_Unit] = []
        self._waiting, self._on_point, self._room = waiting, on_point, True

    def fill(self) -> list[Ended]:
        """Begin cells where there is room; those that could not begin."""
        if not self._room:
            return []
        self._room = False
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        members, ended = _open(self._waiting, self._on_point, taken=sum(unit.load for unit in self.units))
        for same in _grouped(members):
            units, failed = _built(same)
            self.units += units
            ended += failed
        return ended + self._shared()

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
            except _TooLargeError:
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
        total = sum(_load(member.training) for unit in self.units for member in unit.members)
        ended = [one for unit in self.units for one in unit.share(total)]
        self._room |= any(not unit.members for unit in self.units)
        self.units = [unit for unit in self.units if unit.members]
        return ended


@dataclass
class _Member:
    """A cell under way."""

    session: Session
    training: FastTraining
    between: Turns
    closing: ExitStack

    def go(self, move: Callable[[], object]) -> bool | Exception | None:
        """Let the run go on, up to its next update: None; else how it ended."""
        try:
            try:
                move()
            except StopIteration:
                raise
            except Exception as error:  # the run's to deal with, as where it makes its updates itself
                self.between.throw(error)
        except StopIteration as end:
            how: bool | Exception = bool(end.value)
        except Exception as error:
            how = error
        else:
            return None
        self.closing.close()
        return how


def _open(waiting: Jobs, on_point: OnPoint, *, taken: float) -> tuple[list[_Member], list[Ended]]:
    """Begin cells while there is room, always one where nothing else runs; and those that could not begin."""
    opened: list[_Member] = []
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
        opened.append(_Member(session, session.training, session.turns(control), closing))
        last = _load(session.training)
        taken += last
    return opened, failed


def _load(training: FastTraining) -> float:
    """How much of a GPU a cell fills, in rollouts of a small model."""
    parameters = sum(parameter.numel() for parameter in training.decoder.parameters())
    return training.cell.batch_size * max(1.0, parameters / _SMALL)


def _grouped(members: Sequence[_Member]) -> list[list[_Member]]:
    """Members of one shape together, as many as fit one pass, the others each alone."""
    alike: dict[Any, list[_Member]] = {}
    for member in members:
        key = stacks_with(member.training)
        alike.setdefault(id(member) if key is None else key, []).append(member)
    groups = []
    for same in alike.values():
        training = same[0].training
        most = max(1, training.sizes.micro_batch // training.cell.batch_size)
        groups += [same[start : start + most] for start in range(0, len(same), most)]
    return groups


def _built(members: list[_Member], *, begun: bool = False) -> tuple[list[_Unit], list[Ended]]:
    """These cells as one unit, or as several where they do not fit memory together; and those that fit nowhere."""
    error: Exception | None = None
    try:
        return [_Unit(members, begun=begun)], []
    except torch.OutOfMemoryError as caught:
        if len(members) == 1:
            error = caught
    if error is not None:
        how = members[0].go(partial(_raise, error))
        return [], [(members[0].session.cell, how or error)]
    return _split(members, begun=begun)


def _split(members: list[_Member], *, begun: bool) -> tuple[list[_Unit], list[Ended]]:
    """The same in two parts."""
    half, size = (len(members) + 1) // 2, members[0].training.cell.batch_size
    warnings.warn(
        f"{len(members)} cells of {size} rollouts do not run in one stack; they run in two.",
        stacklevel=2,
    )
    for member in members:
        member.training.stand_alone()
    gc.collect()
    if members[0].training.on_gpu:
        torch.cuda.empty_cache()
    first, second = (_built(part, begun=begun) for part in (members[:half], members[half:]))
    return first[0] + second[0], first[1] + second[1]


def _raise(error: Exception) -> None:
    raise error


class _TooLargeError(Exception):
    """The cells of a stack do not run together: most often they do not fit memory."""


class _Unit:
    """Cells that make their updates in one graph, on a stream of their own."""

    def __init__(self, members: Sequence[_Member], *, begun: bool = False) -> None:
        self.members = list(members)
        trainings = [member.training for member in members]
        self.load = sum(map(_load, trainings))
        self._on_gpu, self._begun = trainings[0].on_gpu, begun
        self._stream: Any = None
        self._queued: deque[Any] = deque()
        if self._on_gpu:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
            self._stream.wait_stream(torch.cuda.current_stream())
        with self._here():
            self._stack = StackedTrainings(trainings) if len(trainings) > 1 else None

    def _here(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._on_gpu else nullcontext()

    def ready(self) -> bool:
        """Whether the device has room for another update of this unit."""
        while self._queued and self._queued[0].query():
            self._queued.popleft()
        return len(self._queued) < _AHEAD

    def wait(self) -> None:
        """Until it has."""
        self._queued[0].synchronize()

    def share(self, total: float) -> list[Ended]:
        """Count the time so far, and what follows by another share; a run may end where its numbers are looked at."""
        with self._here():
            ended = self._moved([(member, member.training.settle) for member in self.members])
        for member in self.members:
            member.training.share = _load(member.training) / total
        return ended

    def turn(self) -> list[Ended]:
        """One update of all members, and what they do between updates; those that ended."""
        with self._here():
            if not self._begun:
                self._begun = True
                return self._moved([(member, member.between.__next__) for member in self.members])
            ended = self._moved([(member, member.training.begin_update) for member in self.members])
            if not self.members:
                return ended
            failure = self._step()
            if self._on_gpu:
                self._queued.append(self._stream.record_event())
            return ended + self._moved([(member, partial(_after, member, failure)) for member in self.members])

    def halves(self) -> tuple[list[_Unit], list[Ended]]:
        """The same cells in two units, where they do not run in one."""
        self._stack = None
        if self._on_gpu:
            self._stream.synchronize()
        return _split(self.members, begun=True)

    def _step(self) -> Exception | None:
        """The step of all members; what went wrong for all of them."""
        try:
            if self._stack is None:
                self.members[0].training.make_step()
            else:
                self._stack.make_step()
        except Exception as error:
            if "CUDA error" in str(error):  # nothing runs in this process any more; the runner tries again elsewhere
                raise
            if self._stack is not None and len(self.members) > 1:
                raise _TooLargeError from error
            return error
        return None

    def _moved(self, moves: Sequence[tuple[_Member, Callable[[], object]]]) -> list[Ended]:
        ended: list[Ended] = []
        for member, move in moves:
            how = member.go(move)
            if how is None:
                continue
            ended.append((member.session.cell, how))
            self.members.remove(member)
            if self._on_gpu and isinstance(how, Exception):
                self._stream.synchronize()  # its updates that wait must not write to memory that is given away
            if self._stack is not None:
                self._stack.leave(member.training)
        return ended


def _after(member: _Member, failure: Exception | None) -> None:
    """What a member does when the step is made: count it, and go on to the next."""
    if failure is not None:
        raise failure
    member.training.end_update()
    member.between.send(True)
