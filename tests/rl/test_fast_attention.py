"""Attention with shared prompts, run by Triton's interpreter, against PyTorch's own in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.rl.fast.attention import Layout, attend_shared, fits_attention

pytest.importorskip("triton", reason="Triton runs on Linux alone")

EPSILON = 1e-6


def rotated(x_THK: Tensor, norm_K: Tensor | None, positions_T: Tensor, speeds_E: Tensor) -> Tensor:
    """Norm and RoPE as the papers write them, on complex numbers."""
    if norm_K is not None:
        x_THK = F.rms_norm(x_THK, x_THK.shape[-1:], norm_K, EPSILON)
    a, b = x_THK.chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.exp(1j * positions_T[:, None].double() * speeds_E)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def reference(
    qkv_NC: Tensor, norms: tuple[Tensor | None, Tensor | None], speeds_E: Tensor, padding: list[int], layout: Layout,
    heads: int, groups: int,
) -> Tensor:  # fmt: skip
    """Sequence by sequence: prompt and response joined, plainly causal, padding cut off."""
    size = qkv_NC.shape[1] // (heads + 2 * groups)
    q, k, v = qkv_NC.view(len(qkv_NC), -1, size).split([heads, groups, groups], dim=1)
    first_prompt = layout.responses * layout.tokens
    out_NHK = torch.zeros(len(qkv_NC), heads, size, dtype=qkv_NC.dtype)

    def attend(tokens_T: Tensor) -> Tensor:
        at_T = torch.arange(len(tokens_T))
        q_THK, k_TGK = (rotated(x[tokens_T], norm, at_T, speeds_E) for x, norm in zip((q, k), norms, strict=True))
        parts = (x.transpose(0, 1)[None] for x in (q_THK, k_TGK, v[tokens_T]))
        return F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    for problem, pad in enumerate(padding):
        start = first_prompt + problem * layout.slots
        prompt_T = torch.arange(start + pad, start + layout.slots)
        out_NHK = out_NHK.index_put((prompt_T,), attend(prompt_T))
        for row in range(problem * layout.per_prompt, (problem + 1) * layout.per_prompt):
            own_T = torch.arange(row * layout.tokens, (row + 1) * layout.tokens)
            both = attend(torch.cat([prompt_T, own_T]))
            out_NHK = out_NHK.index_put((own_T,), both[len(prompt_T) :])
    return out_NHK.flatten(1)


CASES = {
    "grouped, normed": (Layout(2, 3, 5, 7), 4, 2, 12, True),
    "one head, no norm": (Layout(3, 1, 18, 20), 1, 1, 32, False),
    "prompts alone": (Layout(2, 2, 6, 0), 2, 1, 8, True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients(case: tuple[Layout, int, int, int, bool], dtype: torch.dtype) -> None:
    layout, heads, groups, size, normed = case
    torch.manual_seed(0)
    qkv_NC = torch.randn(layout.flat, (heads + 2 * groups) * size).to(dtype).requires_grad_()
    norms = tuple((torch.rand(size) + 0.5).to(dtype).requires_grad_() if normed else None for _ in "qk")
    padding = [problem % 3 for problem in range(layout.problems)]
    speeds_E = torch.rand(size // 2, dtype=torch.float64)
    angles_TE = torch.arange(layout.slots + layout.tokens)[:, None] * speeds_E.float()
    got_NC = attend_shared(
        qkv_NC, *norms, angles_TE.cos(), angles_TE.sin(), torch.tensor(padding, dtype=torch.int32), layout,
        heads=heads, groups=groups, epsilon=EPSILON,
    )  # fmt: skip
    real_N = torch.ones(layout.flat, dtype=torch.bool)  # padding attends to itself, and nobody asks
    for problem, pad in enumerate(padding):
        start = layout.responses * layout.tokens + problem * layout.slots
        real_N[start : start + pad] = False
    grad_NC = torch.randn_like(got_NC) * real_N[:, None]
    inputs = [tensor for tensor in (qkv_NC, *norms) if tensor is not None]
    got = [got_NC * real_N[:, None], *torch.autograd.grad(got_NC, inputs, grad_NC)]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    wide_norms = (wide[1], wide[2]) if normed else (None, None)
    want_NC = reference(wide[0], wide_norms, speeds_E, padding, layout, heads, groups)
    want = [want_NC, *torch.autograd.grad(want_NC, wide, grad_NC.double())]
    for name, one, other in zip(("out", "qkv", "q_norm", "k_norm"), got, want, strict=False):
        error = float((one.detach().double() - other.detach()).norm() / other.detach().norm())
        assert error < (1e-5 if dtype == torch.float32 else 1e-2), name


def test_weights_of_the_softmax_are_not_rounded() -> None:
    """Without norm and rotation only the result is rounded: it is the exact one's nearest bf16, but for ties."""
    layout, size = Layout(2, 2, 6, 9), 16
    torch.manual_seed(0)
    qkv_NC = torch.randn(layout.flat, 3 * size).bfloat16()
    flat_TE = torch.zeros(layout.slots + layout.tokens, size // 2)
    padding_P = torch.zeros(2, dtype=torch.int32)
    got_NC = attend_shared(
        qkv_NC, None, None, flat_TE + 1, flat_TE, padding_P, layout, heads=1, groups=1, epsilon=EPSILON
    )
    want_NC = reference(qkv_NC.double(), (None, None), flat_TE[0].double(), [0, 0], layout, 1, 1)
    assert got_NC.eq(want_NC.bfloat16()).double().mean() > 0.99


def test_longer_sequences_are_left_to_others() -> None:
    assert fits_attention(slots=14, tokens=63, head_dim=48)
    assert not fits_attention(slots=14, tokens=255, head_dim=64)
    assert not fits_attention(slots=300, tokens=8, head_dim=64)
