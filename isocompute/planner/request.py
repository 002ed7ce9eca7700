"""The request for a plan: the command line, `isocompute.plan(...)` and the web app all fill a `PlanRequest`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from isocompute.core.errors import InputError

MOST_ROLLOUTS = 1e15
"""Most rollouts that a budget may buy: no run makes more, and floats do not count more exactly."""
UNITS = {"": "rollouts", "tok": "tokens", "h": "gpu_hours"}
"""Units of a budget by the suffix of its text; money has a prefix."""
_BUDGET = re.compile(r"(?P<money>\$)?\s*(?P<number>[0-9_,.]+(?:e[+-]?\d+)?)\s*(?P<suffix>[a-z]*)", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
"""Commas between thousands; reading a decimal comma as one would multiply the amount by ten or more."""
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_LARGEST = 1e12
"""Numbers of a setup lie between this and its inverse; outside, costs would overflow."""


@dataclass(frozen=True)
class Budget:
    """An amount and its unit: `rollouts`, `tokens`, `gpu_hours` or `money`."""

    amount: float
    unit: str

    def __str__(self) -> str:
        whole = 100 <= self.amount <= MOST_ROLLOUTS or (self.amount < 100 and self.amount.is_integer())
        amount = f"{self.amount:,.0f}" if whole else f"{self.amount:.3g}"
        return f"${amount}" if self.unit == "money" else f"{amount} {self.unit.replace('gpu_hours', 'GPU-hours')}"

    def times(self, factor: float, *, at_most: bool = False) -> str:
        """This budget times a factor, as `--budget` takes it.

        It is rounded to three digits (or whole rollouts): up, so that it is enough, or down with `at_most`.

        >>> Budget(3.0, "gpu_hours").times(1 / 7), Budget(1e9, "tokens").times(12), Budget(99.0, "rollouts").times(2.5)
        ('0.429h', '12,000,000,000tok', '248')
        """
        amount = self.amount * factor
        step = 1.0 if self.unit == "rollouts" else 10.0 ** (math.floor(math.log10(amount)) - 2)
        slack = min(1e-9 * amount, step / 4)
        rounded = step * (math.floor((amount + slack) / step) if at_most else math.ceil((amount - slack) / step))
        text = f"{rounded:,.0f}" if step >= 1 else f"{rounded:.3g}"
        suffix = next((suffix for suffix, unit in UNITS.items() if unit == self.unit), "")
        return f"${text}" if self.unit == "money" else f"{text}{suffix}"


def parse_budget(text: str | float | Budget) -> Budget:
    """A budget from text; `k`, `M` and `B` scale.

    >>> parse_budget("2e6"), parse_budget("3Btok"), parse_budget("500h"), parse_budget("$2,000")
    ... # doctest: +NORMALIZE_WHITESPACE
    (Budget(amount=2000000.0, unit='rollouts'), Budget(amount=3000000000.0, unit='tokens'),
     Budget(amount=500.0, unit='gpu_hours'), Budget(amount=2000.0, unit='money'))
    """
    if isinstance(text, Budget):
        return text
    match = _BUDGET.fullmatch(str(text).strip())
    amount, unit = math.nan, ""
    if match:
        suffix = match["suffix"].lower()
        unit = next((u for u in ("tok", "h") if suffix.endswith(u)), "")
        if "," in match["number"] and not _THOUSANDS.fullmatch(match["number"]):
            point = str(text).strip().replace(",", ".")
            or_point = f", or {point} with a decimal point" if point.count(".") == 1 else ""
            raise InputError(f"--budget {text}: commas go between thousands, as in 1,000,000{or_point}.")
        try:
            amount = float(match["number"].replace(",", "").replace("_", ""))
            amount *= _SCALES.get(suffix.removesuffix(unit), math.nan)
        except ValueError:
            amount = math.nan
    if not (match and math.isfinite(amount) and amount > 0) or (match["money"] and unit):
        raise InputError(
            f"--budget {text}: give a positive amount such as 2e6 (rollouts), 3e9tok (tokens), 500h (GPU-hours) or "
            "$2000 (money)."
        )
    return Budget(amount, "money" if match["money"] else UNITS[unit])


@dataclass(frozen=True)
class Anchor:
    """A learning rate that works, and its batch size."""

    learning_rate: float
    batch_size: int
    given: bool = True


PAPER_ANCHOR = Anchor(1e-6, 1024, given=False)
"""IsoCompute's own, from a grid search for Qwen2.5-7B-Instruct; other models may need another."""


def parse_anchor(text: str | Anchor | None) -> Anchor:
    """`1e-6@1024`: a learning rate and the batch size, in rollouts, at which it works.

    >>> parse_anchor("3e-6@512")
    Anchor(learning_rate=3e-06, batch_size=512, given=True)
    """
    if not isinstance(text, str):
        return text or PAPER_ANCHOR
    rate_text, _, batch_text = text.partition("@")
    try:
        rate, batch = float(rate_text), float(batch_text)
    except ValueError:
        rate, batch = math.nan, math.nan
    if not (math.isfinite(rate) and rate > 0 and math.isfinite(batch) and batch >= 1 and batch == int(batch)):
        raise InputError(
            f"--lr-reference {text}: give a learning rate and the batch, in rollouts, where it works, such as "
            "1e-6@1024."
        )
    return Anchor(rate, int(batch))


def _allowed_rollouts(given: Any) -> tuple[int, ...] | None:
    """The n from `8,16,32`, one number or several."""
    if given is None:
        return None
    listed: list[Any] = [given]
    if isinstance(given, str):
        listed = [int(part) if part.strip().isdecimal() else 0 for part in given.split(",")]
    elif isinstance(given, Iterable):
        listed = list(given)
    if not (listed and all(isinstance(n, Integral) and int(n) >= 1 for n in listed)):
        text = given if isinstance(given, str) else ",".join(map(str, listed)) or "of nothing"
        raise InputError(f"--n {text}: give whole numbers of at least 1, such as 8,16,32.")
    return tuple(sorted({int(n) for n in listed}))


def _range(given: Any) -> tuple[int, int] | None:
    """The range of Bp from `32-256` or from its two ends."""
    if given is None:
        return None
    ends = [part.strip() for part in given.split("-")] if isinstance(given, str) else list(given)
    if isinstance(given, str):
        ends = [int(end) if end.isdecimal() and end.isascii() else 0 for end in ends]
    if len(ends) != 2 or not all(isinstance(end, Integral) and int(end) >= 1 for end in ends):
        text = given if isinstance(given, str) else "-".join(map(str, ends))
        raise InputError(f"--stable-problems {text}: give the smallest and the largest Bp, such as 32-256.")
    low, high = map(int, ends)
    if low > high:
        raise InputError(f"--stable-problems {low}-{high}: the range is empty; say {high}-{low}.")
    return low, high


def _field(description: str, default: Any = None, *, option: str = "", example: Any = None, **bounds: Any) -> Any:
    """A field: its help text, its option if it is not named like the field, and an example for messages."""
    return Field(default, description=description, json_schema_extra={"option": option, "example": example}, **bounds)


def _whole(given: Any) -> Any:
    """NumPy integers as Python's."""
    return int(given) if isinstance(given, Integral) else given


_Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, strict=True)]
_Amount = Annotated[float, Field(ge=1 / _LARGEST, le=_LARGEST, allow_inf_nan=False)]


class PlanRequest(BaseModel):
    """All arguments of a plan; None for those that are not given."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    budget: Annotated[InstanceOf[Budget], BeforeValidator(parse_budget)] = Field(
        description="2e6 (rollouts), 3e9tok (tokens), 500h (GPU-hours) or $2000",
        json_schema_extra={"option": "", "example": "2e6"},
    )
    law: Any = _field("a published law's name, a law.json, or runs to fit")
    metric: str | None = _field("metric to plan for: avg@k, best@k or worst@k; the law's own by default")
    difficulty: Literal["easy", "hard"] | None = _field(
        "difficulty of the set, easy or hard: it decides KL and entropy"
    )
    pass_rates: Any = _field("per-problem pass rates of the base model: CSV, JSONL, parquet, JSON or text")
    pass_rate_column: str | None = _field("their column, where several could be meant")
    problems: _Count | None = _field("D: problems in the training set", example=6000)
    problems_per_batch: _Count | None = _field("fix Bp: the choice is n against updates", example=32)
    batch_size: _Count | None = _field("fix B = Bp · n: the choice is Bp against n", option="--batch", example=8192)
    rollouts_per_problem: Annotated[tuple[int, ...] | None, BeforeValidator(_allowed_rollouts)] = _field(
        "allowed n, such as 8,16,32", option="--n"
    )
    stable_problems: Annotated[tuple[int, int] | None, BeforeValidator(_range)] = _field(
        "range of Bp that trains stably, such as 32-256"
    )
    max_batch: _Count | None = _field("largest B = Bp · n that the hardware takes", example=8192)
    min_updates: _Count = _field("fewest updates", 1, example=1)
    lr_reference: Annotated[InstanceOf[Anchor], BeforeValidator(parse_anchor)] = _field(
        "a learning rate that works and its batch: 1e-6@1024", PAPER_ANCHOR
    )
    truncated: float | None = _field("share of the base model's responses that are cut off", ge=0, le=1, example=0.05)
    gpus: _Count | None = _field("GPUs; a batch must divide by them", example=8)
    gpu: str | None = _field("GPU by name, such as H200, for the cost model")
    model: str | None = _field("the model's folder or config.json, for the cost model")
    prompt_tokens: _Amount | None = _field("mean tokens of a prompt")
    response_tokens: _Amount | None = _field("mean tokens of a response")
    rollouts_per_second: _Amount | None = _field("measured throughput of all GPUs, training included")
    timed_runs: Any = _field("runs that log seconds, for the throughput", option="--throughput-from")
    price_per_gpu_hour: _Amount | None = _field("money for one GPU-hour")
    extrapolate: bool = _field("plan far outside the law's range", False)
    replicates: Annotated[int, Field(strict=True)] = _field("bootstrap replicates", 1000, example=1000)
    seed: int = _field("seed of the bootstrap", 0, ge=0, example=0)

    @classmethod
    def of(cls, **given: Any) -> PlanRequest:
        """A request from arguments; wrong ones raise an `InputError` that names the option."""
        try:
            return cls(**given)
        except ValidationError as error:
            raise InputError(_explained(error)) from error

    @model_validator(mode="after")
    def _consistent(self) -> PlanRequest:
        bp, b, stable = self.problems_per_batch, self.batch_size, self.stable_problems
        if b and self.max_batch and b > self.max_batch:
            raise InputError(f"--batch {b} with --max-batch {self.max_batch}: raise --max-batch to {b}.")
        if bp and stable and not stable[0] <= bp <= stable[1]:
            nearest = min(max(bp, stable[0]), stable[1])
            raise InputError(
                f"--problems-per-batch {bp} with --stable-problems {stable[0]}-{stable[1]}: say --problems-per-batch "
                f"{nearest}."
            )
        if self.prompt_tokens is not None and self.model is None and self.gpu is None:
            raise InputError(
                f"--prompt-tokens {self.prompt_tokens:g}: the cost model alone counts them; say --model config.json, "
                "--gpu H200 and --gpus 8 too, or leave it out."
            )
        if self.pass_rate_column is not None and not isinstance(self.pass_rates, str):
            raise InputError(
                f"--pass-rate-column {self.pass_rate_column}: it is a column of a file of pass rates; say --pass-rates "
                "FILE."
            )
        return self


def option_of(name: str) -> str:
    """The command-line option of a field.

    >>> option_of("batch_size"), option_of("max_batch")
    ('--batch', '--max-batch')
    """
    extra = PlanRequest.model_fields[name].json_schema_extra
    option = extra.get("option") if isinstance(extra, dict) else None
    return str(option or f"--{name.replace('_', '-')}")


def _explained(error: ValidationError) -> str:
    """The first validation error as a one-line message."""
    first = error.errors()[0]
    refused = first.get("ctx", {}).get("error")
    if isinstance(refused, InputError):
        return str(refused)
    name = str(first["loc"][0])
    if name not in PlanRequest.model_fields:
        return f"{name}: plan has no such argument; it has {', '.join(PlanRequest.model_fields)}."
    field, given = PlanRequest.model_fields[name], first["input"]
    if first["type"] == "missing":
        return f"plan needs a {name}: {field.description}."
    extra = field.json_schema_extra
    example = extra.get("example") if isinstance(extra, dict) else None
    shown = f"{option_of(name)} {given:g}" if isinstance(given, float) else f"{option_of(name)} {given}"
    if first["type"] == "literal_error":
        return f"{shown}: it is {first['ctx']['expected'].replace(chr(39), '')}; or give --pass-rates FILE."
    if isinstance(example, int):
        least = first.get("ctx", {}).get("ge", 1)
        return f"{shown}: give a whole number of at least {least}, such as {example}."
    if isinstance(given, float) and math.isfinite(given) and given > 0 and name != "truncated":
        return f"{shown}: no run has that; give a number from {1 / _LARGEST:g} to {_LARGEST:g}."
    return f"{shown}: give a {'share from 0 to 1' if name == 'truncated' else 'finite number above 0'}."
