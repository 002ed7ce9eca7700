"""Which groups are under way, and which the trainer may take so that no token it ever sees is over k updates old.

Version v of the weights is what v updates have made. A group that starts at version v must be trained on by update
v + k at the latest (update s trains weights s into s + 1). Two rules keep that promise for all groups at once, whatever
the lengths of their responses:

- a group starts only if, with every group before it trained on first and Bp groups an update, its turn comes in time;
- an update takes complete groups in the order they started, but only if the groups it leaves behind can still all be
  trained on in time in that same way; otherwise the trainer waits for the old ones to complete.

Groups start in the order of their versions, so waiting for the Bp oldest always resolves. k = 0 leaves room for exactly
one batch at a time: on-policy training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Group", "Ledger"]


@dataclass
class Group:
    """The rollouts of one problem, in flight or complete."""

    seat: int
    """Where its rollouts are recorded."""
    number: int
    """How many groups began before it."""
    problem: int
    version: int
    """Of the weights that began it: that of its oldest token."""
    unfinished: int


class Ledger:
    """Groups in the order they started."""

    def __init__(self, *, problems_per_batch: int, steps: int) -> None:
        self.batch_size, self.steps = problems_per_batch, steps
        self.seats = problems_per_batch * (steps + 1)
        """Groups that can be under way at most."""
        self._groups: dict[int, Group] = {}
        self._free = list(range(self.seats - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def room(self, *, version: int, next_update: int) -> int:
        """How many groups may start now, at this version of the sampler's weights."""
        in_time = self.steps - (next_update - version) + 1
        return max(0, self.batch_size * in_time - len(self._groups))

    def __getitem__(self, seat: int) -> Group:
        return self._groups[seat]

    def start(self, *, number: int, problem: int, version: int, rollouts: int) -> Group:
        """A new group; ask for room before. Versions never fall from one group to the next."""
        group = Group(self._free.pop(), number, problem, version, rollouts)
        self._groups[group.seat] = group
        return group

    def complete(self) -> list[Group]:
        """Groups whose rollouts have all ended."""
        return [group for group in self._groups.values() if not group.unfinished]

    def batch(self, update: int) -> list[Group]:
        """What this update may train on; empty while it has to wait."""
        taken = self.complete()[: self.batch_size]
        if len(taken) < self.batch_size:
            return []
        seats = {group.seat for group in taken}
        left = [group for group in self._groups.values() if group.seat not in seats]
        in_time = all(g.version + self.steps >= update + 1 + i // self.batch_size for i, g in enumerate(left))
        return taken if in_time else []

    def remove(self, groups: Iterable[Group]) -> None:
        """Trained on, or dropped."""
        for group in groups:
            del self._groups[group.seat]
            self._free.append(group.seat)
