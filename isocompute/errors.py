"""The one error a user can cause: it says what is wrong, where, and what to do about it."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """Wrong input. The command line prints it on one line and exits with code 2."""
