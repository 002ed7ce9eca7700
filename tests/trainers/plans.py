"""Random valid plans and machines, and the fields of a plan that `explain` must give back."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from isocompute.trainers import RunPlan, TrainerSetup, TrainingHardware, make_plan

LOSSES = ("clip", "gspo", "cispo", "reinforce")
ADVANTAGES = ("group_std", "group_mean", "batch_std", "none", "gae")
AGGREGATIONS = ("token", "sequence", "prompt", "fixed")
OF_RECIPE = (
    *("loss", "advantage", "aggregation", "ratio_reference", "tis_cap", "zero_variance_filter", "updates_per_batch"),
    *("kl_coef", "entropy_coef", "temperature", "top_p", "warmup_steps"),
    *("beta1", "beta2", "epsilon", "weight_decay", "grad_clip"),
)
OF_PLAN = (
    *("problems_per_batch", "rollouts_per_problem", "update_steps", "batch_size", "compute", "learning_rate"),
    *("max_prompt_length", "max_response_length"),
)


def positive(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, exclude_min=False)


RECIPES = st.fixed_dictionaries(
    {
        "name": st.just("isocompute-hard"),
        "loss": st.sampled_from(LOSSES),
        "advantage": st.sampled_from(ADVANTAGES),
        "aggregation": st.sampled_from(AGGREGATIONS),
        "clip_low": positive(1e-4, 1),
        "clip_high": positive(1e-4, 1),
        "ratio_cap": positive(1.5, 10),
        "ratio_reference": st.sampled_from(("trainer", "sampler")),
        "tis_cap": st.none() | positive(1, 10),
        "kl_coef": st.just(0.0) | positive(1e-6, 0.1),
        "entropy_coef": st.just(0.0) | positive(1e-6, 0.1),
        "temperature": positive(0.1, 1.5),
        "top_p": st.just(1.0) | positive(0.5, 1),
        "warmup_steps": st.integers(0, 100),
        "beta2": st.sampled_from((0.95, 0.99, 0.999)),
        "epsilon": st.sampled_from((1e-8, 1e-15)),
        "weight_decay": st.just(0.0) | positive(1e-4, 0.1),
        "grad_clip": st.none() | positive(0.1, 10),
        "updates_per_batch": st.sampled_from((1, 1, 1, 2)),
    }
).map(lambda fields: fields if fields["ratio_reference"] == "trainer" else {**fields, "tis_cap": None})


@st.composite
def cases(draw: st.DrawFn) -> tuple[RunPlan, TrainingHardware]:
    """A plan that divides over the machine it comes with."""
    gpus = draw(st.sampled_from((2, 3, 4, 8, 16, 64)))
    recipe = draw(RECIPES)
    n = draw(st.integers(2, 64))
    problems = draw(st.integers(1, 64)) * gpus
    if draw(st.booleans()):  # the other factor carries the GPUs
        n, problems = n * gpus, max(1, problems // gpus)
    prompt, response = draw(st.integers(16, 2048)), draw(st.integers(16, 8192))
    limit = draw(st.sampled_from(("none", "sequences", "tokens")))
    hardware = TrainingHardware(
        gpus=gpus,
        max_sequences=draw(st.integers(1, 64)) if limit == "sequences" else None,
        max_tokens=draw(st.integers(1, 8)) * (prompt + response) if limit == "tokens" else None,
    )
    optional = {
        "validation_samples": st.integers(1, 64),
        "problems": st.integers(problems, 100_000),
        "seed": st.integers(0, 10_000),
        "model": st.sampled_from(("Qwen/Qwen2.5-7B", "/models/my model", "org/it's")),
        "train_file": st.sampled_from(("data/easy.parquet", "/data/a,b=c.jsonl", "~/x y.parquet")),
        "val_file": st.sampled_from(("data/val.parquet", "v#1.jsonl")),
    }
    table: dict[str, Any] = {
        "problems_per_batch": problems,
        "rollouts_per_problem": n,
        "update_steps": draw(st.integers(1, 5000)),
        "learning_rate": draw(positive(1e-9, 1e-2)),
        "max_prompt_length": prompt,
        "max_response_length": response,
        "recipe": recipe,
    }
    table |= {key: draw(strategy) for key, strategy in optional.items() if draw(st.booleans())}
    return make_plan(table), hardware


def wanted(plan: RunPlan) -> dict[str, Any]:
    """Everything of a plan that a config says, if its trainer can."""
    recipe = plan.recipe
    out = {name: getattr(plan, name) for name in OF_PLAN} | {name: getattr(recipe, name) for name in OF_RECIPE}
    if recipe.loss == "cispo":
        out["ratio_cap"] = recipe.ratio_cap
    elif recipe.loss != "reinforce":
        out |= {"clip_low": recipe.clip_low, "clip_high": recipe.clip_high}
    for name in ("validation_samples", "seed", "model", "train_file", "val_file"):
        if getattr(plan, name) is not None:
            out[name] = getattr(plan, name)
    return out


IN_SCRIPT = {"model", "train_file"}
"""What a GRPOConfig does not hold: the script that makes the trainer says it."""


def differences(plan: RunPlan, setup: TrainerSetup, noted: set[str]) -> dict[str, tuple[Any, Any]]:
    """Fields that differ and that no note speaks of: (wanted, found)."""
    out = {}
    for name, value in wanted(plan).items():
        found = getattr(setup, name)
        same = found == value or (
            isinstance(value, float) and found is not None and abs(found - value) < 1e-9 * abs(value)
        )
        if not same and name not in noted:
            out[name] = (value, found)
    return out
