"""AdamW on FP32 weights, whatever the model computes in.

A bf16 model keeps FP32 masters: a step of 1e-6 would vanish in bf16. An FP32 model is its own master.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe
from isocompute.rl.fast.adam import FlatAdamW

__all__ = ["Optimizer"]


_FLAT_MOST = 1 << 25
"""Parameters up to which PyTorch's kernel leaves much of a GPU idle; beyond, moments and gradients that are always
there would be a matter of memory.
"""


class Optimizer:
    """Collects gradients of micro-batches, clips, steps. Nothing here asks the device for an answer, so that a CUDA
    graph can hold it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], recipe: Recipe, *, flat: bool = False) -> None:
        """`flat`: every parameter gets a gradient at every step, and a kernel of our own may take them all at once."""
        self.parameters = list(parameters)
        self.grad_clip = recipe.grad_clip
        self.masters = [p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for p in self.parameters]
        pairs = zip(self.parameters, self.masters, strict=True)
        self._cast = [(p, m) for p, m in pairs if p is not m]
        device = self.parameters[0].device
        self.rate = torch.tensor(recipe.learning_rate, device=device)
        self.inner: torch.optim.Optimizer
        if recipe.optimizer == "sgd":
            self.inner = torch.optim.SGD(self.masters, lr=self.rate, fused=True)
        elif flat and len(self._cast) == len(self.parameters) and sum(p.numel() for p in self.masters) <= _FLAT_MOST:
            self.inner = FlatAdamW(self.masters, self.rate, recipe)
        else:
            self.inner = torch.optim.AdamW(
                self.masters,
                lr=self.rate,
                betas=(recipe.beta1, recipe.beta2),
                eps=recipe.epsilon,
                weight_decay=recipe.weight_decay,
                fused=True,
                capturable=device.type == "cuda",
            )

    def collect(self) -> None:
        """Fold the gradients of a micro-batch into the masters'; those of FP32 parameters add up by themselves."""
        new: list[tuple[Tensor, Tensor]] = []
        more: list[tuple[Tensor, Tensor]] = []
        for parameter, master in self._cast:
            if parameter.grad is not None:
                if master.grad is None:
                    master.grad = self._room(master)
                    new.append((master.grad, parameter.grad))
                else:
                    more.append((master.grad, parameter.grad))
                parameter.grad = None
        if new:  # all of them in a few kernels
            torch._foreach_copy_([to for to, _ in new], [grad for _, grad in new])
        if more:
            torch._foreach_add_([to for to, _ in more], [grad for _, grad in more])

    def _room(self, master: nn.Parameter) -> Tensor:
        """Where a master's gradient goes."""
        return self.inner.rooms[master] if isinstance(self.inner, FlatAdamW) else torch.empty_like(master)

    @torch.no_grad()
    def step(self) -> Tensor:
        """One step at the learning rate in `rate`; the gradient's norm before clipping. A norm that is not a number
        changes nothing: the weights stay good.
        """
        gradients = [m.grad for m in self.masters if m.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(self.inner, FlatAdamW):
            self.inner.step_within(norm, self.grad_clip)
        else:
            self._step_clipped(norm)
        if self._cast:
            torch._foreach_copy_([p for p, _ in self._cast], [m for _, m in self._cast])
        self.inner.zero_grad(set_to_none=True)
        return norm

    def _step_clipped(self, norm: Tensor) -> None:
        """The step of an optimiser of PyTorch's."""
        if self.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.masters, self.grad_clip, norm)
        # The fused optimisers leave everything as it is where this is not 0, as they do for a gradient scaler.
        self.inner.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]  # torch declares it late
        self.inner.grad_scale = None  # type: ignore[attr-defined]  # likewise
        self.inner.step()

    def state(self, prefix: str) -> dict[str, np.ndarray]:
        """Weights and moments for a checkpoint."""
        out: dict[str, np.ndarray] = {}
        for i, master in enumerate(self.masters):
            out[f"{prefix}{i}"] = _array(master)
            for name, value in self.inner.state[master].items():
                out[f"{prefix}{i}.{name}"] = _array(value)
        return out

    @torch.no_grad()
    def restore(self, arrays: dict[str, np.ndarray], prefix: str) -> None:
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
