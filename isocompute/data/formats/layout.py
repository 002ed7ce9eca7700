"""What the columns of somebody's table mean: the run, the step, the compute, the metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from isocompute.data.logs.names import is_validation, our_names

__all__ = ["NO_COMPUTE", "Layout", "layout_of"]

NO_COMPUTE = (
    "no run counts compute in rollouts or tokens or gpu_hours or steps; add the column 'rollouts', or 'step' with "
    "problems_per_batch and rollouts_per_problem"
)
"""Of a table without any of them: in the words of a law that is asked for one (law/from_runs.py)."""

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
    """How to read a table, or why it cannot be."""

    kind: str
    """`long`, `tracker` (one column a run and metric), `runs` (one column a run), `rows`, `ends`, `none`."""
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
    """Whether it is clear that this is no log."""


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
    # A column of rollouts that is also the table's only count of compute counts compute.
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
        why = f"this is a set of problems (a row a problem), not a training log; {reader} reads those"
        return Layout("none", why=why, other=True)
    if not numbers:
        return Layout("none", why="no column of numbers besides the step")
    if not step and not compute:
        if run:
            return Layout("ends", run, settings=settings, numbers=numbers)
        return Layout("none", why=NO_COMPUTE)
    mapped = our_names(numbers).ours
    # A tracker's chart calls its first column `Step` and the others by run; a table of ours has `step` and metrics.
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
