"""What stands between the products of a training pass, against the same written with PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from isocompute.rl.fast import embedding, passes
from isocompute.rl.fast.attention import Layout
from isocompute.rl.fast.embedding import fits_look_up, look_up
from isocompute.rl.fast.exact import exact_linear
from isocompute.rl.fast.head import head_scores_fused
from isocompute.rl.fast.passes import add_and_norm, predicting, swiglu
from isocompute.rl.fast.sums import sum_parts

FP32, BF16 = torch.float32, torch.bfloat16


def gradients(of: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What a function gives, and the gradients of a random sum of it."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = of(*leaves)
    torch.manual_seed(9)
    loss = sum((x.float() * torch.randn(x.shape)).sum() for x in out)
    return [x.detach() for x in out], list(torch.autograd.grad(loss, leaves))


def agree(ours: list[Tensor], theirs: list[Tensor], *, tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert float((a.float() - b.float()).norm()) <= tolerance * float(b.float().norm())


def _normed(x_ND: Tensor, weight: Tensor) -> Tensor:
    cells = weight.numel() // x_ND.shape[1]
    unit = F.rms_norm(x_ND, x_ND.shape[1:], None, 1e-6).view(cells, -1, x_ND.shape[1])
    return (unit * weight.float().view(cells, 1, -1)).to(weight.dtype).view(x_ND.shape)


@pytest.mark.parametrize(("dtype", "tolerance"), [(FP32, 1e-6), (BF16, 4e-3)])
@pytest.mark.parametrize("cells", [0, 3])
def test_a_sum_and_its_norm(dtype: torch.dtype, tolerance: float, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_PROGRAMS", 4)  # several rounds of rows in a program
    torch.manual_seed(0)
    x_ND, y_ND = torch.randn(333, 24), torch.randn(333, 24).to(dtype)
    weight = (1 + 0.3 * torch.randn(cells, 24) if cells else 1 + 0.3 * torch.randn(24)).to(dtype)

    def plain(x_ND: Tensor, y_ND: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total_ND = x_ND + y_ND
        return total_ND, _normed(total_ND, weight)

    ours = gradients(lambda *of: add_and_norm(*of, 1e-6), x_ND, y_ND, weight)
    theirs = gradients(plain, x_ND, y_ND, weight)
    agree(ours[0], theirs[0], tolerance=tolerance)
    agree(ours[1], theirs[1], tolerance=tolerance)


def test_a_norm_without_a_sum_and_without_what_comes_later() -> None:
    torch.manual_seed(0)
    x_ND, weight_D = torch.randn(70, 40), 1 + 0.3 * torch.randn(40)
    ours = gradients(lambda x, w: (add_and_norm(x, None, w, 1e-6)[1],), x_ND, weight_D)
    theirs = gradients(lambda x, w: (_normed(x, w),), x_ND, weight_D)
    agree([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], tolerance=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(FP32, 1e-6), (BF16, 3e-3)])
def test_gate_and_up(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    both_NF = (3 * torch.randn(77, 96)).to(dtype)

    def plain(both_NF: Tensor) -> tuple[Tensor]:
        gate_NF, up_NF = both_NF.chunk(2, dim=1)
        return (F.silu(gate_NF) * up_NF,)

    ours, theirs = gradients(lambda x: (swiglu(x),), both_NF), gradients(plain, both_NF)
    agree([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], tolerance=tolerance)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("vocabulary", "width", "cells"), [(5, 24, 0), (103, 192, 0), (103, 24, 3), (256, 70, 0)])
def test_embeddings_and_their_gradient(
    dtype: torch.dtype, vocabulary: int, width: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_PROGRAMS", 12)  # several rounds of tokens in a program
    torch.manual_seed(0)
    shape = (cells, vocabulary, width) if cells else (vocabulary, width)
    table, tokens_N = torch.randn(shape).to(dtype), torch.randint(vocabulary - 1, (1 + 2 * max(cells, 1) * 150,))
    tokens_N = tokens_N[: len(tokens_N) // max(cells, 1) * max(cells, 1)]

    def plain(table: Tensor) -> tuple[Tensor]:
        tables, tokens = table.view(-1, vocabulary, width), tokens_N.view(max(cells, 1), -1)
        return (torch.cat([F.embedding(t, own.float()) for t, own in zip(tokens, tables, strict=True)]),)

    ours, theirs = gradients(lambda x: (look_up(x, tokens_N),), table), gradients(plain, table)
    agree(ours[0], theirs[0], tolerance=0.0)
    agree(ours[1], theirs[1], tolerance=1e-6 if dtype == FP32 else 3e-3)
    assert fits_look_up(table)
    assert not fits_look_up(torch.zeros(257, 8))


@pytest.mark.parametrize("parts", [1, 256, 257, 66_000])
def test_parts_are_added_up(parts: int) -> None:
    torch.manual_seed(0)
    parts_GPD = torch.randn(2, parts, 33)
    agree([sum_parts(parts_GPD, FP32)], [parts_GPD.double().sum(dim=1).float()], tolerance=1e-6)
    assert sum_parts(parts_GPD, BF16).dtype == BF16


@pytest.mark.parametrize("cells", [1, 2])
def test_tokens_from_which_others_are_predicted(cells: int) -> None:
    layout = Layout(problems=2 * cells, per_prompt=3, slots=4, tokens=5, cells=cells)
    torch.manual_seed(0)

    def plain(x_ND: Tensor) -> tuple[Tensor]:
        out = []
        for x_ND_of_cell in x_ND.view(cells, -1, 7):
            responses, prompts = x_ND_of_cell[:30].view(6, 5, 7), x_ND_of_cell[30:].view(2, 4, 7)
            out += [torch.cat([prompts[row // 3, -1:], responses[row]]) for row in range(6)]
        return (torch.stack(out),)

    x_ND = torch.randn(layout.flat, 7)
    ours, theirs = gradients(lambda x: (predicting(x, layout),), x_ND), gradients(plain, x_ND)
    agree([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], tolerance=1e-6)


def _scores(x_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies in FP64; with several cells, the rows of a cell by its own weights."""
    cells = weight_VD.view(-1, *weight_VD.shape[-2:]).double()
    x_GND = x_ND.double().view(len(cells), -1, x_ND.shape[1])
    logprobs_NV = ((x_GND @ cells.mT) / temperature).flatten(0, 1).log_softmax(dim=-1)
    return logprobs_NV.gather(1, tokens_N[:, None])[:, 0].float(), -(logprobs_NV.exp() * logprobs_NV).sum(1).float()


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(
    ("vocabulary", "cells", "temperature"), [(5, 0, 1.0), (103, 0, 0.7), (103, 2, 1.0), (4501, 0, 1.3)]
)
def test_the_head(dtype: torch.dtype, vocabulary: int, cells: int, temperature: float) -> None:
    """In bf16 too it computes in FP32: what goes in is exact, and what comes back is rounded once."""
    torch.manual_seed(0)
    shape = (cells, vocabulary, 16) if cells else (vocabulary, 16)
    x_ND, weight_VD = torch.randn(36, 16).to(dtype), (2 * torch.randn(shape)).to(dtype)
    tokens_N = torch.randint(vocabulary, (36,))
    tokens_N[0] = vocabulary - 1
    ours = gradients(lambda x, w: head_scores_fused(x, w, tokens_N, temperature), x_ND, weight_VD)
    theirs = gradients(lambda x, w: _scores(x, w, tokens_N, temperature), x_ND, weight_VD)
    agree(ours[0], theirs[0], tolerance=1e-5)
    agree(ours[1], theirs[1], tolerance=1e-5 if dtype == FP32 else 3e-3)


def test_an_entropy_loses_nothing_to_large_logits() -> None:
    logits = torch.tensor([[900.0, 900.0, 899.0], [-500.0, -501.0, -700.0]])
    x_ND, weight_VD = torch.eye(2), logits.T.contiguous()
    _, entropies_N = head_scores_fused(x_ND, weight_VD, torch.tensor([0, 1]), 1.0)
    expected = torch.distributions.Categorical(logits=logits.double()).entropy()
    assert entropies_N.double() == pytest.approx(expected, rel=1e-6)


def test_the_gradient_of_a_token_that_is_all_but_certain() -> None:
    """1 - p of 2e-6, far below the precision of the logits' own size: that of a late policy's tokens."""
    torch.manual_seed(0)
    logits_NV = 30.0 + torch.randn(64, 20)
    logits_NV[:, 3] += 16.0
    tokens_N = torch.full((64,), 3)

    def gradient(of: Callable[[Tensor], Tensor], x_NV: Tensor) -> Tensor:
        x_NV = x_NV.clone().requires_grad_()
        return torch.autograd.grad(of(x_NV).sum(), x_NV)[0][:, 3].double()

    ours = gradient(lambda x: head_scores_fused(x, torch.eye(20), tokens_N, 1.0)[0], logits_NV)
    theirs = gradient(lambda x: x.log_softmax(dim=-1)[:, 3], logits_NV)
    exact = gradient(lambda x: x.log_softmax(dim=-1)[:, 3], logits_NV.double())
    assert float(((ours - exact) / exact).abs().median()) <= 2 * float(((theirs - exact) / exact).abs().median())


def test_arrays_in_any_order() -> None:
    """Inputs and gradients that are transposed in memory."""
    torch.manual_seed(0)
    x_ND, y_ND, weight_D = torch.randn(9, 24), torch.randn(9, 24), torch.rand(24)

    def turned(x: Tensor) -> Tensor:
        return x.T.contiguous().T

    def normed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return add_and_norm(x, y, weight_D, 1e-6)

    def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (swiglu(torch.cat([x, y])),)

    for of in (normed, mixed):
        ours = gradients(lambda x, y, of=of: tuple(turned(out) for out in of(turned(x), turned(y))), x_ND, y_ND)
        theirs = gradients(of, x_ND, y_ND)
        agree([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], tolerance=1e-6)


def test_rows_that_are_not_there_have_no_norm() -> None:
    x_ND, weight_D = torch.randn(5, 24), torch.ones(24)
    _, (_, grad_D) = gradients(lambda x, w: (add_and_norm(x, None, w, 0.0)[1],), x_ND, weight_D)
    assert bool(torch.isfinite(grad_D).all())


def test_the_gradient_of_an_exact_product_is_rounded_once() -> None:
    torch.manual_seed(0)
    x_ND, weight_VD = torch.randn(50, 16).to(BF16), torch.randn(13, 16).to(BF16)
    ours = gradients(lambda x, w: (exact_linear(x, w),), x_ND, weight_VD)
    theirs = gradients(lambda x, w: (x.float() @ w.float().T,), x_ND, weight_VD)
    agree(ours[0], theirs[0], tolerance=1e-6)
    agree(ours[1], theirs[1], tolerance=1e-3)
