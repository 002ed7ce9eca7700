"""The plan: from a law and a budget to an allocation, a recipe and a cost.

`isocompute.plan(...)` and this package share a name, so the package can be called: it is `isocompute.plan.api.plan`,
whose arguments and documentation are there.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature

    from isocompute.plan.planner import Plan


class _Callable(ModuleType):
    """A module that is also the function of its name."""

    @property
    def __signature__(self) -> Signature:
        """The function's, for notebooks."""
        from inspect import signature

        from isocompute.plan.api import plan

        return signature(plan)

    def __call__(self, *arguments: Any, **options: Any) -> Plan:
        from isocompute.plan.api import plan

        return plan(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
