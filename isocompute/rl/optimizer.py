"""AdamW on FP32 weights, whatever the model computes in.

A bf16 model keeps FP32 masters: a step of 1e-6 would vanish in bf16. An FP32 model is its own master.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe

__all__ = ["Optimizer"]


class Optimizer:
    """Collects gradients of micro-batches, clips, steps."""

    def __init__(self, parameters: Sequence[nn.Parameter], recipe: Recipe) -> None:
        self.parameters = list(parameters)
        self.grad_clip = recipe.grad_clip
        self.masters = [p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for p in self.parameters]
        pairs = zip(self.parameters, self.masters, strict=True)
        self._cast = [(p, m) for p, m in pairs if p is not m]
        self.rate = torch.tensor(recipe.learning_rate, device=self.parameters[0].device)
        self.inner: torch.optim.Optimizer
        if recipe.optimizer == "sgd":
            self.inner = torch.optim.SGD(self.masters, lr=self.rate, fused=True)
        else:
            self.inner = torch.optim.AdamW(
                self.masters,
                lr=self.rate,
                betas=(recipe.beta1, recipe.beta2),
                eps=recipe.epsilon,
                weight_decay=recipe.weight_decay,
                fused=True,
            )

    def collect(self) -> None:
        """Add the gradients of a micro-batch to the masters'; those of FP32 parameters add up by themselves."""
        for parameter, master in self._cast:
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> Tensor:
        """One step at the learning rate in `rate`; returns the gradient's norm before clipping. A norm that is not
        finite changes nothing: the weights stay good.
        """
        norm = torch.nn.utils.get_total_norm([m.grad for m in self.masters if m.grad is not None])
        if self.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.masters, self.grad_clip, norm)
        # The fused optimisers skip the step where this is not 0, as they do for a gradient scaler.
        self.inner.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]  # torch declares it late
        self.inner.grad_scale = None  # type: ignore[attr-defined]  # likewise
        self.inner.step()
        if self._cast:
            torch._foreach_copy_([p for p, _ in self._cast], [m for _, m in self._cast])
        self.inner.zero_grad(set_to_none=True)
        return norm

    def state(self, prefix: str) -> dict[str, np.ndarray]:
        """Weights and moments for a checkpoint."""
        out: dict[str, np.ndarray] = {}
        for i, master in enumerate(self.masters):
            out[f"{prefix}{i}"] = _array(master)
            for name, value in self.inner.state[master].items():
                out[f"{prefix}{i}.{name}"] = _array(value)
        return out

    @torch.no_grad()
    def restore(self, arrays: Mapping[str, np.ndarray], prefix: str) -> None:
        """Go on from a checkpoint."""
        for i, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            master.copy_(torch.from_numpy(arrays[f"{prefix}{i}"]))
            if parameter is not master:
                parameter.copy_(master)
            start = f"{prefix}{i}."
            here = self.inner.state[master]
            for name in (key.removeprefix(start) for key in arrays if key.startswith(start)):
                value = torch.from_numpy(arrays[start + name].copy()).to(master.device)
                if name in here:
                    here[name].copy_(value)  # in place: a captured step keeps its addresses
                else:
                    here[name] = value


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
