"""Cells that make their updates in one captured step, on a stream of their own: a stack, or one cell.

Whatever one of them does between updates, or how it ends, is that one's alone.
"""

from __future__ import annotations

import gc
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from isocompute.rl.fast.stack import StackedTrainings
from isocompute.rl.fast.training import FastTraining
from isocompute.rl.session import Session
from isocompute.sweep.base import Cell
from isocompute.sweep.drive import Turns

__all__ = ["Ended", "Member", "TooLargeError", "Unit", "built", "load_of"]

_UNIT_MODEL = 2_000_000
"""Parameters of the model whose rollouts count as one each in a load; larger ones count for more."""
_AHEAD = 16
"""Updates of a unit that may wait on the device: enough to keep it busy while the host evaluates another unit."""

Ended = tuple[Cell, bool | Exception]
"""A cell, and what `Engine.run` would have returned or raised."""


@dataclass
class Member:
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


def load_of(training: FastTraining) -> float:
    """How much of a GPU a cell fills, in rollouts of a small model."""
    parameters = sum(parameter.numel() for parameter in training.decoder.parameters())
    return training.cell.batch_size * max(1.0, parameters / _UNIT_MODEL)


def built(members: list[Member], *, begun: bool = False) -> tuple[list[Unit], list[Ended]]:
    """These cells as one unit, or as several where they do not fit memory together; and those that fit nowhere."""
    error: Exception | None = None
    try:
        return [Unit(members, begun=begun)], []
    except torch.OutOfMemoryError as caught:
        if len(members) == 1:
            error = caught
    if error is not None:
        how = members[0].go(partial(_raise, error))
        return [], [(members[0].session.cell, how or error)]
    return _split(members, begun=begun)


def _split(members: list[Member], *, begun: bool) -> tuple[list[Unit], list[Ended]]:
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
    first, second = (built(part, begun=begun) for part in (members[:half], members[half:]))
    return first[0] + second[0], first[1] + second[1]


def _raise(error: Exception) -> None:
    raise error


class TooLargeError(Exception):
    """The cells of a stack do not run together: most often they do not fit memory."""


class Unit:
    """Cells that make their updates in one graph, on a stream of their own."""

    def __init__(self, members: Sequence[Member], *, begun: bool = False) -> None:
        self.members = list(members)
        trainings = [member.training for member in members]
        self.load = sum(map(load_of, trainings))
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
            member.training.share = load_of(member.training) / total
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

    def halves(self) -> tuple[list[Unit], list[Ended]]:
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
                raise TooLargeError from error
            return error
        return None

    def _moved(self, moves: Sequence[tuple[Member, Callable[[], object]]]) -> list[Ended]:
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


def _after(member: Member, failure: Exception | None) -> None:
    """What a member does when the step is made: count it, and go on to the next."""
    if failure is not None:
        raise failure
    member.training.end_update()
    member.between.send(True)
