"""`run.json`: how a run was made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["RunSettings"]


class RunSettings(BaseModel):
    """`run.json`: how a run was made. What a source does not say stays None; further keys are kept as they are."""

    model_config = ConfigDict(extra="allow")

    problems_per_batch: int | None = Field(default=None, ge=1, description="Bp: problems in a batch")
    rollouts_per_problem: int | None = Field(default=None, ge=1, description="n: rollouts of each problem")
    update_steps: int | None = Field(default=None, ge=1, description="M: updates planned")
    seed: int | None = Field(default=None, description="seed of the run; runs that differ only in it are repetitions")
    gpus: int | None = Field(default=None, ge=1, description="accelerators, to count GPU-hours from seconds")
    engine: str | None = Field(default=None, description="what made the run: sim, lm, or a trainer's name")
    model: str | None = Field(default=None, description="base model")
    problems: str | None = Field(default=None, description="problem set")
    recipe: dict[str, Any] | None = Field(default=None, description="the recipe's fields")
    versions: dict[str, str] | None = Field(default=None, description="software that made the run")
