"""What a cell says of the engine itself: model, device, sizes; and its recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.cell import Cell
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import Recipe, make_recipe
from isocompute.rl.model import TINY, model_folder, read_anchor

__all__ = ["EngineSpec", "lm_recipe"]


class EngineSpec(BaseModel):
    """The `[engine_options]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=TINY, description="checkpoint folder, name on the hub, or tiny: the built-in one")
    device: str = Field(default="auto", description="cpu, cuda, cuda:1; auto takes a GPU where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="what the model computes in; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    micro_batch: int | None = Field(default=None, ge=1, description="rollouts in one forward and backward pass")
    sample_batch: int | None = Field(default=None, ge=1, description="rollouts sampled at a time")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; 1 for small models, else torch's choice")
    slots: int | None = Field(default=None, ge=1, description="pipeline: sequences in flight; a batch if not set")
    overlap: int = Field(default=0, ge=0, description="pipeline: decode steps that go on beside an update")
    generation_device: str | None = Field(default=None, description="pipeline: where to sample, such as cuda:1")
    fast: bool = Field(default=True, description="CUDA graphs on a GPU, compiled C on a CPU, where the cell allows it")
    together: bool = Field(default=True, description="cells of a study share a GPU in one process where they can")
    save_model: bool = Field(default=False, description="write the trained weights as a checkpoint into the run")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> EngineSpec:
        """From a table; errors name the field."""
        try:
            spec = cls(**table)
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"engine.{where}: {why}.") from error
        for name, device in (("device", spec.device), ("generation_device", spec.generation_device or "cpu")):
            if (name, device) != ("device", "auto") and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
                auto = " or auto" if name == "device" else ""
                raise InputError(f"engine.{name}: '{device}' is not cpu, cuda, cuda:1{auto}.")
            if device.startswith("cuda") and not torch.cuda.is_available():
                raise InputError(f"engine.{name}: '{device}', but torch sees no GPU on this machine; use cpu.")
            if ":" in device and int(device.partition(":")[2]) >= torch.cuda.device_count():
                raise InputError(f"engine.{name}: '{device}', but torch sees {torch.cuda.device_count()} GPU(s).")
        return spec

    @property
    def where(self) -> str:
        """The device by name."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the weights."""
        if self.dtype == "auto":
            return torch.bfloat16 if self.where.startswith("cuda") else torch.float32
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32


def lm_recipe(cell: Cell) -> Recipe:
    """The cell's recipe; fields it does not name come from the model's own folder, such as a learning rate."""
    return make_recipe(cell.recipe, defaults=read_anchor(model_folder(EngineSpec.of(cell.engine).model)))
