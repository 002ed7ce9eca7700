"""What the columns of a table mean: the run, step, compute and metrics; and the model, problems and recipe of a run.

A column gives a run's model, problems or recipe only if it has a single value in every run: a learning rate that is
logged as it decays is a metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import polars as pl
from pydantic import TypeAdapter, ValidationError

from isocompute.core.metric_names import is_validation, our_names
from isocompute.core.recipe import Recipe

_TEXTS = {
    "model": ("model", "model_name", "base_model", "model_name_or_path"),
    "problems": ("problems", "problem_set", "dataset", "dataset_name", "set", "task"),
}
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("lr", "actor_lr", "actor_learning_rate"),
    "kl_coef": ("kl_coeff", "kl_loss_coef", "kl_penalty_coef", "beta"),
    "entropy_coef": ("entropy_coeff", "entropy_loss_coef"),
    "clip_low": ("clip_ratio_low", "eps_clip_low"),
    "clip_high": ("clip_ratio_high", "eps_clip_high", "epsilon_high"),
    "loss": ("loss_type", "policy_loss_type", "loss_mode"),
    "advantage": ("adv_estimator", "advantage_estimator"),
    "aggregation": ("loss_agg_mode", "loss_reduction"),
    "beta1": ("adam_beta1",),
    "beta2": ("adam_beta2",),
    "grad_clip": ("max_grad_norm",),
}
_ALGORITHMS = {"grpo": "group_std", "dr_grpo": "group_mean", "rloo": "group_mean"}
"""Advantages by the name of the algorithm."""
_AMBIGUOUS = {"epsilon", "schedule", "interrupt_window"}
"""Fields that are never read from columns: TRL's `epsilon` is a clip, ours is Adam's; the rest are not plain values."""
_FIELDS = {name: field for name, field in Recipe.model_fields.items() if name not in _AMBIGUOUS}
_WORDS = ("loss", "advantage", "aggregation")
"""Fields whose values other tools name differently; their values are kept as they are."""
_BY_NAME = {spelling: name for name in _FIELDS for spelling in (name, *_SPELLINGS.get(name, ()))}
ORIGINS = (*_TEXTS, *_FIELDS)
"""Settings of a run that a column can give, by our names."""


def origin_of(columns: Sequence[str]) -> dict[str, str]:
    """`model`, `problems` or a recipe's field for each of these columns that names one."""
    plain = {column.strip().lower(): column for column in reversed(columns)}
    out = {}
    for name, spellings in _TEXTS.items():
        found = next((plain[s] for s in spellings if s in plain), None)
        if found is not None:
            out[found] = name
    for spelling, name in _BY_NAME.items():
        if spelling in plain and name not in out.values():
            out[plain[spelling]] = name
    return out


def constant_columns(table: pl.DataFrame, runs: Iterable[pl.DataFrame]) -> dict[str, str]:
    """Columns that hold settings of the runs: those with a single valid value in each run."""
    found = {
        column: name
        for column, name in origin_of(table.columns).items()
        if not table.schema[column].is_nested()
        and (table.schema[column] == pl.String or name not in _TEXTS)
        and table[column].null_count() < table.height
    }
    for run in runs:
        for column, name in list(found.items()):
            values = run[column].drop_nulls().unique()
            if len(values) > 1 or (len(values) == 1 and _value(name, values[0]) is None):
                del found[column]
    return found


def origin_settings(run: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, Any]:
    """Settings of one run from `constant_columns`: `model`, `problems` and `recipe`."""
    out: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for column, name in columns.items():
        values = run[column].drop_nulls()
        if len(values):
            (out if name in _TEXTS else recipe)[name] = _value(name, values[0])
    return out | ({"recipe": recipe} if recipe else {})


def recipe_field(key: str, value: Any) -> tuple[str, Any] | None:
    """The recipe field and value of a key that several trainers or scripts use; None if it is not such a key."""
    name = _BY_NAME.get(key)
    found = None if name is None else _value(name, value)
    return None if name is None or found is None else (name, found)


def _value(name: str, value: Any) -> Any:
    """The value as the settings store it; None if it is not valid for this name."""
    if name in _TEXTS:
        return str(value) if isinstance(value, str) and value.strip() else None
    if name in _WORDS:
        if not isinstance(value, str) or not value.strip():
            return None
        return _ALGORITHMS.get(value, value) if name == "advantage" else value
    if isinstance(value, bool) and name != "fp32_head":
        return None
    try:
        return _adapter(name).validate_python(value)
    except ValidationError:
        return None


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_FIELDS[name].rebuild_annotation())


# The layout of a table: which column is the run, the step, the compute, and which are metrics.

NO_COMPUTE = (
    "no run counts compute in rollouts or tokens or gpu_hours or steps; add the column 'rollouts', or 'step' with "
    "problems_per_batch and rollouts_per_problem"
)
"""The error message for a table without any of these columns."""

_RUN = ("run", "run_name", "run_id", "experiment", "experiment_name", "exp", "trial", "name")
_METRIC = ("metric", "metric_name", "key", "tag", "variable")
_VALUE = ("value", "val")
_STEP = (
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "step",
    "steps",
    "_step",
    "grpo_step",
    "train_step",
    "training_step",
    "update",
    "updates",
    "iteration",
    "iter",
)
_COMPUTE = {
    "rollouts": ("rollouts", "c_rollouts", "total_rollouts", "compute_rollouts", "c"),
    "tokens": ("tokens", "total_tokens"),
    "gpu_hours": ("gpu_hours", "gpu_hours_k", "gpu-hours", "gpuh", "compute_gpu_hours"),
    "seconds": ("seconds", "elapsed_seconds", "_runtime", "relative_time_(process)"),
    "tokens_with_prompts": ("num_tokens",),
}
_SETTINGS = {
    "problems_per_batch": (
        "problems_per_batch",
        "bp",
        "prompts_per_batch",
        "prompts_per_step",
        "num_prompts_per_step",
        "groups_per_batch",
    ),
    "rollouts_per_problem": (
        "rollouts_per_problem",
        "n",
        "num_generations",
        "group_size",
        "n_samples_per_prompt",
        "rollout_n",
        "num_rollouts",
    ),
    "seed": ("seed",),
    "gpus": ("gpus",),
}
_KEYS = (
    "set",
    "dataset",
    "task",
    "env",
    "model",
    "variant",
    "method",
    "algorithm",
    "setting",
    "config",
    "label",
    "group",
)
_IGNORED = ("timestamp", "_timestamp", "wall_time", "wall time", "time", "epoch_time", "run_id", "id")
_PROBLEMS = {"prompt", "ground_truth", "reward_model", "question", "problem", "answer", "extra_info"}
_METRIC_WORD = re.compile(
    r"loss|reward|acc|scor|kl|entrop|\blr\b|learning|rate|len|norm|mean|std|avg|best|worst|time|sec|token|epoch|grad"
    r"|eval|\bval|test|train|pass|metric|value|pct|correct|success|return|clip|ratio|frac|fit|advantage",
    re.IGNORECASE,
)
_LONGEST = 500
_TRACKER = re.compile(r"(?P<run>.+) - (?P<metric>[^ ].*?)(?P<edge>__MIN|__MAX)?")


@dataclass(frozen=True)
class Layout:
    """How to read a table, or why that is not possible."""

    kind: str
    """`long` (a row per value), `tracker` (a column per run and metric), `runs` (a column per run), `rows` (a row per
    evaluation), `ends` (a row per run), `none`."""
    run: str | None = None
    metric: str | None = None
    value: str | None = None
    step: str | None = None
    compute: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    """Columns of metrics."""
    why: str = ""
    other: bool = False
    """True for a table that is certainly not a log; `why` says what it is."""


def layout_of(columns: Sequence[str], numeric: set[str]) -> Layout:
    """The layout of a table with these columns, of which `numeric` hold numbers."""
    plain = {_plain(c): c for c in reversed(columns)}
    run = _one(plain, _RUN)
    step = _one(plain, _STEP, numeric)
    metric, value = _one(plain, _METRIC), _one(plain, _VALUE)
    compute = {ours: c for ours, names in _COMPUTE.items() if (c := _one(plain, names, numeric))}
    settings = {ours: c for ours, names in _SETTINGS.items() if (c := _one(plain, names, numeric))}
    if metric and value and metric not in numeric and (step or compute):
        return Layout("long", run, metric, value, step, compute)
    used = {run, step, *compute.values(), *settings.values()}
    numbers = tuple(c for c in columns if c in numeric and c not in used and _plain(c) not in _IGNORED)
    tracked = [c for c in numbers if len(c) <= _LONGEST and _TRACKER.fullmatch(c)]
    if not run and len(tracked) * 2 > len(numbers):
        if step or compute:
            return Layout("tracker", step=step, compute=compute, numbers=tuple(tracked))
        return Layout("none", why=f"a tracker's chart over '{columns[0]}'; export it with Step as its x axis")
    problems = _PROBLEMS & set(plain)
    if (problems or any(c.endswith("pass_rate") for c in plain)) and not step and not compute and not run:
        reader = "isocompute split" if problems else "isocompute plan --pass-rates"  # split needs the questions
        why = f"this is a set of problems (one row per problem), not a training log; {reader} reads those"
        return Layout("none", why=why, other=True)
    if not numbers:
        return Layout("none", why="no column of numbers besides the step")
    if not step and not compute:
        if run:
            return Layout("ends", run, settings=settings, numbers=numbers)
        return Layout("none", why=NO_COMPUTE)
    mapped = our_names(numbers).ours
    # A tracker's chart has `Step` and a column per run; a table in our layout has `step` and a column per metric.
    if (
        step
        and step[:1].isupper()
        and not run
        and not settings
        and not any(_METRIC_WORD.search(c) or c in mapped or is_validation(c) for c in numbers)
    ):
        return Layout("runs", step=step, numbers=numbers)
    keys = () if run else tuple(c for name, c in plain.items() if name in _KEYS and c not in numeric)
    return Layout("rows", run, step=step, compute=compute, settings=settings, keys=keys, numbers=numbers)


def split_tracked(column: str) -> tuple[str, str] | None:
    """Run and metric of a tracker's column; None for its minimum and maximum."""
    match = _TRACKER.fullmatch(column)
    return None if match is None or match["edge"] else (match["run"], match["metric"])


def _plain(column: str) -> str:
    return re.sub(r"\s+", "_", column.strip().lower())


def _one(plain: dict[str, str], names: tuple[str, ...], among: set[str] | None = None) -> str | None:
    return next((plain[n] for n in names if n in plain and (among is None or plain[n] in among)), None)
