"""Budgets as people have them: rollouts, tokens, GPU-hours or money, and what turns one into another.

The pivot is a rollout: tokens follow from the length of a response, GPU-hours from a throughput, money from a price.
A conversion that lacks one of the three is refused with the option that would supply it; none has a silent default.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from isocompute.core.errors import InputError

__all__ = ["Budget", "Rates", "parse_budget"]

_FORM = re.compile(r"(?P<money>\$)?\s*(?P<number>[0-9_,.]+(?:e[+-]?\d+)?)\s*(?P<suffix>[a-z]*)", re.IGNORECASE)
_COMMAS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
"""Between thousands; a decimal comma would be read as ten or a hundred times the amount."""
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_UNITS = {"": "rollouts", "tok": "tokens", "h": "gpu_hours"}
_SUFFIXES = {unit: suffix for suffix, unit in _UNITS.items()}
_MOST = 1e15
"""Rollouts that a budget buys at most: beyond it they are no longer counted exactly, and no run makes so many."""
_EXAMPLES = "2e6 (rollouts), 3e9tok (tokens), 500h (GPU-hours) or $2000 (money)"


@dataclass(frozen=True)
class Budget:
    """An amount and its unit: `rollouts`, `tokens`, `gpu_hours` or `money`."""

    amount: float
    unit: str

    def __str__(self) -> str:
        whole = 100 <= self.amount <= _MOST or (self.amount < 100 and self.amount.is_integer())
        amount = f"{self.amount:,.0f}" if whole else f"{self.amount:.3g}"
        if self.unit == "money":
            return f"${amount}"
        return f"{amount} {self.unit.replace('gpu_hours', 'GPU-hours')}"

    def times(self, factor: float, *, at_most: bool = False) -> str:
        """So many times this budget in its own unit, as `--budget` takes it; rounded so that it is enough (three
        digits; whole rollouts), or with `at_most` so that it is not more.

        >>> Budget(3.0, "gpu_hours").times(1 / 7), Budget(1e9, "tokens").times(12), Budget(99.0, "rollouts").times(2.5)
        ('0.429h', '12,000,000,000tok', '248')
        """
        amount = self.amount * factor
        step = 1.0 if self.unit == "rollouts" else 10.0 ** (math.floor(math.log10(amount)) - 2)
        slack = min(1e-9 * amount, step / 4)
        rounded = step * (math.floor((amount + slack) / step) if at_most else math.ceil((amount - slack) / step))
        text = f"{rounded:,.0f}" if step >= 1 else f"{rounded:.3g}"
        return f"${text}" if self.unit == "money" else f"{text}{_SUFFIXES[self.unit]}"


def parse_budget(text: str | float | Budget) -> Budget:
    """A budget from what a user writes; `k`, `M` and `B` scale.

    >>> parse_budget("2e6"), parse_budget("3Btok"), parse_budget("500h"), parse_budget("$2,000")
    ... # doctest: +NORMALIZE_WHITESPACE
    (Budget(amount=2000000.0, unit='rollouts'), Budget(amount=3000000000.0, unit='tokens'),
     Budget(amount=500.0, unit='gpu_hours'), Budget(amount=2000.0, unit='money'))
    """
    if isinstance(text, Budget):
        return text
    match = _FORM.fullmatch(str(text).strip())
    amount, unit = math.nan, ""
    if match:
        suffix = match["suffix"].lower()
        unit = next((u for u in ("tok", "h") if suffix.endswith(u)), "")
        scale = _SCALES.get(suffix.removesuffix(unit), math.nan)
        if "," in match["number"] and not _COMMAS.fullmatch(match["number"]):
            point = str(text).strip().replace(",", ".")
            or_point = f", or {point} with a decimal point" if point.count(".") == 1 else ""
            raise InputError(f"--budget {text}: commas go between thousands, as in 1,000,000{or_point}.")
        try:
            amount = float(match["number"].replace(",", "").replace("_", "")) * scale
        except ValueError:
            amount = math.nan
        if match["money"] and unit:
            amount = math.nan
    if not (math.isfinite(amount) and amount > 0):
        raise InputError(f"--budget {text}: give a positive amount such as {_EXAMPLES}.")
    return Budget(amount, "money" if match and match["money"] else _UNITS[unit])


@dataclass(frozen=True)
class Rates:
    """What a rollout costs here; None where it is not known."""

    response_tokens: float | None = None
    """Tokens generated for one rollout, on average."""
    gpu_hours_per_rollout: float | None = None
    price_per_gpu_hour: float | None = None
    source: str = "given"
    """Where the throughput comes from: given, measured, modelled, or a published run."""

    def rollouts(self, budget: Budget) -> float:
        """The budget in rollouts; one that no run could spend is refused."""
        each = self._per_rollout(budget.unit, f"--budget {budget}")
        found = budget.amount / each
        if not found <= _MOST * (1 + 1e-9):
            most = Budget(_MOST * each, budget.unit).times(1.0, at_most=True)
            raise InputError(
                f"--budget {budget}: over {_MOST:,.0f} rollouts are more than any run makes; plan for at most --budget "
                f"{most}."
            )
        return found

    def amount(self, rollouts: float, unit: str) -> float:
        """So many rollouts in another unit."""
        return rollouts * self._per_rollout(unit, f"a law in {unit}")

    def known(self, unit: str) -> bool:
        """Whether rollouts convert to this unit."""
        try:
            self._per_rollout(unit, unit)
        except InputError:
            return False
        return True

    def _per_rollout(self, unit: str, what: str) -> float:
        if unit not in (*_UNITS.values(), "money"):
            raise InputError(f"{what}: it is none of {', '.join(_UNITS.values())} and money; say one of them.")
        if unit == "rollouts":
            return 1.0
        if unit == "tokens":
            if self.response_tokens is None:
                raise InputError(f"{what}: tokens need the length of a response; say --response-tokens 1500.")
            return self.response_tokens
        if self.gpu_hours_per_rollout is None:
            raise InputError(
                f"{what}: GPU-hours need a throughput; say --rollouts-per-second 12 --gpus 8, or --model and --gpu to "
                "model one."
            )
        if unit == "gpu_hours":
            return self.gpu_hours_per_rollout
        if self.price_per_gpu_hour is None:
            raise InputError(f"{what}: money needs a price; say --price-per-gpu-hour 2.5.")
        return self.gpu_hours_per_rollout * self.price_per_gpu_hour
