"""What the decoder does by hand for speed, against the plain formula or PyTorch's own kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.rl import decoder as decoder_module
from isocompute.rl import scoring
from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Block, Decoder, Norm
from isocompute.rl.sampler import Rollouts, SamplingSettings, sample
from tests.rl.models import CONFIGS


def make_decoder(name: str) -> Decoder:
    torch.manual_seed(0)
    out = Decoder(DecoderConfig.from_json(CONFIGS[name].to_dict())).eval()
    with torch.no_grad():
        for parameter in out.parameters():
            parameter.normal_(std=0.25)
    return out


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**20), width=st.sampled_from([1, 8, 17, 64]), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_norm_and_its_gradient_are_those_of_the_formula(seed: int, width: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (scale * torch.randn((3, 5, width), generator=generator)).requires_grad_()
    upstream = torch.randn((3, 5, width), generator=generator)
    norm = Norm(width, 1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width, generator=generator))
    exact_x, exact_w = x.detach().double().requires_grad_(), norm.weight.detach().double().requires_grad_()
    exact = exact_w * exact_x * torch.rsqrt(exact_x.pow(2).mean(-1, keepdim=True) + 1e-6)
    exact.backward(upstream.double())
    out = norm(x)
    out.backward(upstream)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), exact.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out, exact.float(), atol=1e-5, rtol=1e-5)
    for ours, theirs in ((x.grad, exact_x.grad), (norm.weight.grad, exact_w.grad)):
        assert ours is not None
        assert theirs is not None
        assert (ours - theirs).abs().max() <= 2e-5 * (1.0 / scale + theirs.abs().max())


@pytest.mark.parametrize(("length", "slots"), [(1, 1), (1, 9), (1, 40), (5, 5), (7, 20), (30, 30)])
@pytest.mark.parametrize("masked", [False, True])
def test_written_out_attention_equals_the_kernel(length: int, slots: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(length + slots)
    q = torch.randn((3, length, 4, 8), generator=generator, requires_grad=True)
    k, v = (torch.randn((3, 2, slots, 8), generator=generator, requires_grad=True) for _ in "kv")
    mask = None
    if masked:
        mask = torch.rand((3, length, slots), generator=generator) < 0.6
        mask[..., 0] = True
    upstream = torch.randn((3, length, 32), generator=generator)
    outs = [f(q, k, v, mask) for f in (decoder_module._attend_few, decoder_module._attend)]
    torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(out, (q, k, v), upstream) for out in outs]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prompts", [[[5, 9, 2], [7, 1, 3]], [[0, 5], [5], [7, 1, 33, 80, 4]]], ids=["even", "padded"])
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_shared_prompts_change_nothing(name: str, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder(name)
    rollouts = sample(decoder, prompts, SamplingSettings(12, stop_tokens=(3, 4, 5, 6)), seed=1, per_prompt=4)
    rollouts = rollouts.take(torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0)))
    apart, together = (scores(decoder, rollouts, at, monkeypatch) for at in (10**9, 0))
    torch.testing.assert_close(together, apart, atol=2e-4, rtol=1e-3)
    first = rollouts.take(torch.arange(len(rollouts)))
    one = Rollouts(
        first.prompts_BT,
        first.prompt_lengths_B,
        first.responses_BT[:, :1],
        first.logprobs_BT[:, :1],
        first.mask_BT[:, :1],
        first.stopped_B,
    )
    torch.testing.assert_close(
        scores(decoder, one, 0, monkeypatch)[0], scores(decoder, one, 10**9, monkeypatch)[0], atol=2e-4, rtol=0
    )


def scores(
    decoder: Decoder, rollouts: Rollouts, shared: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[torch.Tensor, ...]:
    """Log-probs, entropies and the gradients of a sum of both, sharing prompts where that saves `shared` tokens."""
    monkeypatch.setattr(scoring, "_SHARED", shared)
    logprobs_BT, entropies_BT = scoring.score(decoder, rollouts, temperature=0.9)
    weights_BT = torch.linspace(-1, 1, logprobs_BT.numel()).view_as(logprobs_BT)
    loss = ((logprobs_BT + 0.3 * entropies_BT) * weights_BT).sum()
    gradients = torch.autograd.grad(loss, list(decoder.parameters()), allow_unused=True)
    scale = max(float(g.abs().max()) for g in gradients if g is not None)
    return logprobs_BT.detach(), entropies_BT.detach(), *(g / scale for g in gradients if g is not None)


def test_a_block_can_be_traced_whole() -> None:
    decoder = make_decoder("qwen3")
    layer, config = decoder.layers[0], decoder.config
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((3, 20, config.hidden_size), generator=generator, requires_grad=True)
    cos, sin = (torch.randn((1, 20, config.head_dim), generator=generator) for _ in "cs")
    traced = torch.compile(Block.forward, backend="aot_eager", fullgraph=True, dynamic=False)
    outs = [f(layer, x, cos, sin, None, None, 0) for f in (Block.forward, traced)]
    torch.testing.assert_close(*outs, atol=1e-4, rtol=1e-4)
    gradients = [torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]) for out in outs]
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
