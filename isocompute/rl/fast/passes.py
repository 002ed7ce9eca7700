"""What stands between the matrix products of a training pass, as functions that autograd knows: the kernels of
`between`, forward and backward.

Rows are flat; those of a stack's cells stand one cell after the other, and its norms' weights are `_GD`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isocompute.rl.fast.attention import Layout, padded
from isocompute.rl.fast.sums import sum_parts
from isocompute.rl.fast.tiles import tiles_of, triton_type

__all__ = ["add_and_norm", "launch_add_and_norm", "launch_swiglu", "predicting", "swiglu"]

_BLOCK = 2048
"""Numbers that a program has at a time."""
_PROGRAMS = 1056
"""Programs of a gradient that is summed over rows: eight for each multiprocessor of a large GPU. More would only make
more parts to add up."""


def add_and_norm(x_ND: Tensor, y_ND: Tensor | None, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x + y in FP32, and w · (x + y) / rms(x + y) in the weights' type."""
    out: tuple[Tensor, Tensor] = _AddAndNorm.apply(x_ND, y_ND, weight_D, epsilon)  # type: ignore[no-untyped-call]  # torch's gap
    return out


def swiglu(both_NF: Tensor) -> Tensor:
    """silu(gate) · up of rows that hold gate and up side by side."""
    out_NF: Tensor = _SwiGlu.apply(both_NF)  # type: ignore[no-untyped-call]  # torch's gap
    return out_NF


def predicting(x_ND: Tensor, layout: Layout) -> Tensor:
    """`_BTD`: the tokens from which a response's are predicted: the prompt's last, and its own but the last."""
    out_BTD: Tensor = _Predicting.apply(x_ND, layout)  # type: ignore[no-untyped-call]  # torch's gap
    return out_BTD


def launch_add_and_norm(x_ND: Tensor, y_ND: Tensor | None, sum_ND: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """What is normed of x + y; the sum is written, too, where there is one to make."""
    from isocompute.rl.fast import between

    count, width = x_ND.shape
    rows = max(1, _BLOCK // padded(width))
    out_ND = weight_D.new_empty(x_ND.shape)
    between.add_and_norm[(tiles_of(count, rows),)](
        x_ND,
        x_ND if y_ND is None else y_ND,
        sum_ND,
        weight_D,
        out_ND,
        count,
        count // (weight_D.numel() // width),
        epsilon,
        D=width,
        DP=padded(width),
        R=rows,
        ADD=y_ND is not None,
        CELLS=weight_D.ndim == 2,
        TYPE=triton_type(out_ND),
    )
    return out_ND


def launch_swiglu(both_NF: Tensor) -> Tensor:
    """`swiglu` without a gradient."""
    from isocompute.rl.fast import between

    inner = both_NF.shape[1] // 2
    out_NF = both_NF.new_empty(len(both_NF), inner)
    grid = (tiles_of(out_NF.numel(), _BLOCK),)
    between.swiglu[grid](both_NF, out_NF, out_NF.numel(), F=inner, N=_BLOCK, TYPE=triton_type(both_NF))
    return out_NF


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, y_ND: Tensor | None, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x_ND, y_ND = x_ND.contiguous(), None if y_ND is None else y_ND.contiguous()
        sum_ND = x_ND if y_ND is None else torch.empty_like(x_ND)
        out_ND = launch_add_and_norm(x_ND, y_ND, sum_ND, weight_D, epsilon)
        ctx.save_for_backward(sum_ND, weight_D)
        ctx.epsilon, ctx.adds = epsilon, y_ND is not None
        return sum_ND, out_ND

    @staticmethod
    def backward(ctx: Any, later_ND: Tensor | None, grad_ND: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        from isocompute.rl.fast import between

        (sum_ND, weight_D), grad_ND = ctx.saved_tensors, grad_ND.contiguous()
        width = sum_ND.shape[1]
        cells = weight_D.numel() // width
        cell_rows, rows = len(sum_ND) // cells, max(1, _BLOCK // 2 // padded(width))
        chunk = rows * tiles_of(cell_rows, rows * max(1, _PROGRAMS // cells))
        dx_ND, dy_ND = torch.empty_like(sum_ND), torch.empty_like(grad_ND) if ctx.adds else None
        parts_GPD = sum_ND.new_empty(cells, tiles_of(cell_rows, chunk), width)
        between.add_and_norm_backward[(parts_GPD.shape[1], cells)](
            sum_ND,
            weight_D,
            sum_ND if later_ND is None else later_ND.contiguous(),
            grad_ND,
            dx_ND,
            dx_ND if dy_ND is None else dy_ND,
            parts_GPD,
            cell_rows,
            chunk,
            ctx.epsilon,
            D=width,
            DP=padded(width),
            R=rows,
            ADD=ctx.adds,
            LATER=later_ND is not None,
            TYPE=triton_type(grad_ND),
        )
        return dx_ND, dy_ND, sum_parts(parts_GPD, weight_D.dtype).view(weight_D.shape), None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both_NF: Tensor) -> Tensor:
        both_NF = both_NF.contiguous()
        ctx.save_for_backward(both_NF)
        return launch_swiglu(both_NF)

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> Tensor:
        from isocompute.rl.fast import between

        (both_NF,) = ctx.saved_tensors
        out_NF = torch.empty_like(both_NF)
        between.swiglu_backward[(tiles_of(grad_NF.numel(), _BLOCK),)](
            both_NF,
            grad_NF.contiguous(),
            out_NF,
            grad_NF.numel(),
            F=grad_NF.shape[1],
            N=_BLOCK,
            TYPE=triton_type(both_NF),
        )
        return out_NF


class _Predicting(torch.autograd.Function):
    """Written out, since slices that are put together again are copied twice as often by autograd."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        out_BTD = x_ND.new_empty(layout.responses, layout.tokens + 1, x_ND.shape[1])
        responses_GBTD, last_GPD = _views(x_ND.contiguous(), layout)
        first_GPND, behind_GBTD = _predicted(out_BTD, layout)
        behind_GBTD.copy_(responses_GBTD)
        first_GPND.copy_(last_GPD[:, :, None])
        return out_BTD

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor, None]:
        layout: Layout = ctx.layout
        out_ND = grad_BTD.new_empty(layout.flat, grad_BTD.shape[-1])
        responses_GBTD, last_GPD = _views(out_ND, layout)
        first_GPND, behind_GBTD = _predicted(grad_BTD.contiguous(), layout)
        _prompts(out_ND, layout).zero_()
        responses_GBTD.copy_(behind_GBTD)
        last_GPD.copy_(first_GPND.sum(dim=2, dtype=torch.float32))
        return out_ND, None


def _views(x_ND: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Of flat tokens those of the responses, and the prompts' last."""
    cells, width = layout.cells, x_ND.shape[1]
    rows = layout.responses // cells
    responses_GND = x_ND.view(cells, -1, width)[:, : rows * layout.tokens]
    return responses_GND.view(cells, rows, layout.tokens, width), _prompts(x_ND, layout)[:, :, -1]


def _prompts(x_ND: Tensor, layout: Layout) -> Tensor:
    """`_GPSD`: of flat tokens those of the prompts."""
    cells, width = layout.cells, x_ND.shape[1]
    first = layout.responses * layout.tokens // cells
    return x_ND.view(cells, -1, width)[:, first:].view(cells, -1, layout.slots, width)


def _predicted(out_BTD: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Places of a response's first token, by problem, and of those behind it."""
    cells, (_, tokens, width) = layout.cells, out_BTD.shape
    out_GPNTD = out_BTD.view(cells, -1, layout.per_prompt, tokens, width)
    return out_GPNTD[:, :, :, 0], out_GPNTD.view(cells, -1, tokens, width)[:, :, 1:]
