"""`--without RUN`: runs that are left out by their name or by a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from isocompute.core.errors import InputError
from isocompute.core.run import listing

__all__ = ["left_out"]

_NEAREST = 4


def left_out(names: Sequence[str], without: Sequence[str]) -> set[str]:
    """Those of the runs' names that are left out; a name or pattern that is none of them is an error.

    >>> sorted(left_out(["n8", "n16", "n32"], ["n8", "n3?"]))
    ['n32', 'n8']
    """
    out: set[str] = set()
    for wanted in without:
        # A run's own name first: it may hold what a pattern gives a meaning.
        taken = {wanted} if wanted in names else {name for name in names if fnmatchcase(name, wanted)}
        if not taken:
            near = get_close_matches(wanted, names, n=_NEAREST, cutoff=0.4)
            raise InputError(
                f"--without {wanted}: no run has that name; "
                + (f"the nearest are {listing(near)}." if near else f"there are {listing(sorted(set(names)))}.")
            )
        out |= taken
    if names and out.issuperset(names):
        raise InputError(f"--without {' --without '.join(without)}: no run remains; leave fewer out.")
    return out
