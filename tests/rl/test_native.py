"""The C library: every function against float64, whole passes against transformers and the plain path."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isocompute.rl import scoring
from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder
from isocompute.rl.native import build, functions, packing, sampling
from isocompute.rl.native.functions import Layout, attend, choose, normalise, swiglu
from isocompute.rl.native.scoring import fits_native
from isocompute.rl.sampler import Rollouts, SamplingSettings, sample
from isocompute.rl.scoring import score
from tests.rl.cells import make_cell, run
from tests.rl.models import CONFIGS, reference

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C compiler")
PROMPTS = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50], [3, 3], [5, 9, 2]]


def decoder_like(model: torch.nn.Module, name: str) -> Decoder:
    out = Decoder(DecoderConfig.from_json(CONFIGS[name].to_dict())).eval()
    names = {key.removeprefix("model."): value for key, value in model.state_dict().items()}
    if CONFIGS[name].tie_word_embeddings:
        names["lm_head.weight"] = names["embed_tokens.weight"]
    out.load_state_dict(names)
    return out


def rolled(decoder: Decoder, **more: Any) -> Rollouts:
    asked = SamplingSettings(21, temperature=0.7, stop_tokens=(11, 12, 13), **more)
    return sample(decoder, PROMPTS, asked, seed=3, per_prompt=7)


# Functions


@given(rows=st.integers(1, 9), width=st.integers(1, 70), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_norms_and_gates_against_float64(rows: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, w, g = (torch.randn(shape, generator=generator) for shape in ((rows, width), (width,), (rows, width)))
    both = torch.randn(rows, 2 * width, generator=generator) * 4
    check(lambda a, b: normalise(a, b, 1e-5), lambda a, b: F.rms_norm(a, (width,), b, 1e-5), (x, w), g)
    check(swiglu, lambda a: F.silu(a[:, :width]) * a[:, width:], (both,), g)


@given(rows=st.integers(1, 9), vocabulary=st.integers(1, 130), temperature=st.sampled_from([0.3, 0.6, 1.0, 2.0]))
@settings(max_examples=40, deadline=None)
def test_choices_against_float64(rows: int, vocabulary: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(rows * 131 + vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * 2
    tokens = torch.randint(0, vocabulary, (rows,), generator=generator)
    g = torch.randn(2, rows, generator=generator)

    def expected(x: Tensor) -> Tensor:
        logprobs = torch.log_softmax(x / temperature, dim=-1)
        return torch.stack([logprobs.gather(1, tokens[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)])

    check(lambda x: torch.stack(choose(x, tokens, temperature)), expected, (logits,), g)


def check(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: tuple[Tensor, ...], g: Tensor) -> None:
    """Values and gradients, to what FP32 can hold."""
    mine = [x.clone().requires_grad_() for x in inputs]
    wide = [x.double().requires_grad_() for x in inputs]
    out, expected = ours(*mine), theirs(*wide)
    (out * g).sum().backward()
    (expected * g).sum().backward()
    for ours_, theirs_ in ((out, expected), *((a.grad, b.grad) for a, b in zip(mine, wide, strict=True))):
        torch.testing.assert_close(ours_.double(), theirs_, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(4, 2, 16), (3, 1, 6), (2, 2, 24), (1, 1, 2)])
@pytest.mark.parametrize("normed", [True, False])
def test_attention_against_torch_in_float64(heads: int, key_heads: int, size: int, normed: bool) -> None:
    torch.manual_seed(heads * size)
    prompts, responses, first = [3, 1, 40], [5, 0, 33, 2, 1, 7], [0, 3, 4, 6]
    starts_P, starts_B, at = [], [], 0
    for p, length in enumerate(prompts):
        starts_P.append(at)
        at += length
        for b in range(first[p], first[p + 1]):
            starts_B.append(at)
            at += responses[b]
    layout = Layout(*map(torch.tensor, (starts_P, prompts, first, starts_B, responses)), slots=47)
    channels = (heads + 2 * key_heads) * size
    qkv, g = torch.randn(at, channels), torch.randn(at, heads * size)
    norm = torch.rand(heads + key_heads, size) + 0.5
    angles = torch.arange(47.0)[:, None] * torch.rand(size // 2)
    cos, sin = torch.cat([angles.cos()] * 2, 1), torch.cat([-angles.sin(), angles.sin()], 1)

    def expected(x: Tensor, *weights: Tensor) -> Tensor:
        out = torch.zeros(at, heads * size, dtype=x.dtype)
        for p, length in enumerate(prompts):
            own = [range(starts_P[p], starts_P[p] + length)]
            own += [range(starts_B[b], starts_B[b] + responses[b]) for b in range(first[p], first[p + 1])]
            for part in own:
                rows = list(own[0]) + (list(part) if part is not own[0] else [])
                y = x[rows].view(len(rows), -1, size)
                qk, v = y[:, : heads + key_heads], y[:, heads + key_heads :]
                if weights:
                    qk = F.rms_norm(qk, (size,), None, 1e-6) * weights[0]
                c, s = cos[: len(rows), None].double(), sin[: len(rows), None].double()
                qk = qk * c + qk.roll(size // 2, -1) * s
                q, k = qk[:, :heads].transpose(0, 1), qk[:, heads:].transpose(0, 1)
                a = F.scaled_dot_product_attention(
                    q[None], k[None], v.transpose(0, 1)[None], is_causal=True, enable_gqa=True
                )[0]
                if part:
                    out[list(part)] = a.transpose(0, 1).reshape(len(rows), -1)[-len(part) :]
        return out

    def ours(x: Tensor, *weights: Tensor) -> Tensor:
        shape = {"heads": heads, "key_heads": key_heads, "epsilon": 1e-6}
        return attend(x, weights[0] if weights else None, (cos, sin), layout, **shape)

    check(ours, expected, (qkv, norm) if normed else (qkv,), g)


# Whole passes


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_and_gradients_against_transformers(name: str) -> None:
    model = reference(name)
    decoder = decoder_like(model, name)
    assert fits_native(decoder)
    rollouts = rolled(decoder)
    weights_BT = torch.randn(rollouts.mask_BT.shape) * rollouts.mask_BT
    logprobs_BT, _ = score(decoder, rollouts, temperature=0.7)
    (logprobs_BT * weights_BT).sum().backward()
    model.zero_grad()
    total = torch.zeros(())
    for row in range(len(rollouts)):
        prompt = PROMPTS[row // 7]
        response = rollouts.responses_BT[row][rollouts.mask_BT[row]]
        logits = model(torch.cat([torch.tensor(prompt), response])[None]).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / 0.7, -1).gather(1, response[:, None])[:, 0]
        torch.testing.assert_close(logprobs_BT[row][rollouts.mask_BT[row]], expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(rollouts.logprobs_BT[row][rollouts.mask_BT[row]], expected, atol=1e-4, rtol=0)
        total = total + (expected * weights_BT[row][rollouts.mask_BT[row]]).sum()
    total.backward()
    theirs = {key.removeprefix("model."): p.grad for key, p in model.named_parameters()}
    for key, parameter in decoder.named_parameters():
        assert parameter.grad is not None
        distance = (parameter.grad - theirs[key]).norm() / theirs[key].norm()
        assert distance < 2e-4, key


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_those_of_the_plain_path(name: str, temperature: float) -> None:
    decoder = decoder_like(reference(name), name)
    asked = SamplingSettings(30, temperature=temperature, stop_tokens=(4, 8))
    drawn = sample(decoder, PROMPTS, asked, seed=8, per_prompt=3)
    decoder.native = False
    plain = sample(decoder, PROMPTS, asked, seed=8, per_prompt=3)
    for ours, theirs in ((drawn.responses_BT, plain.responses_BT), (drawn.mask_BT, plain.mask_BT)):
        assert torch.equal(ours, theirs)
    assert torch.equal(drawn.stopped_B, plain.stopped_B)
    torch.testing.assert_close(drawn.logprobs_BT, plain.logprobs_BT, atol=1e-4, rtol=0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neither_company_nor_threads_change_a_row(threads: int) -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    asked = SamplingSettings(18, temperature=0.9, stop_tokens=(1, 2, 3, 4, 5))
    together = sample(decoder, PROMPTS * 20, asked, seed=4)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again = sample(decoder, PROMPTS * 20, asked, seed=4)
        alone = sample(decoder, [PROMPTS[1]], asked, seed=4, row_numbers=[41])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together.logprobs_BT, again.logprobs_BT)  # to the bit
    length = int(together.lengths_B[41])
    torch.testing.assert_close(alone.logprobs_BT[0], together.logprobs_BT[41, :length], atol=1e-5, rtol=0)


def test_gradients_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    rollouts = rolled(decoder)

    def gradient() -> Tensor:
        decoder.zero_grad()
        logprobs_BT, entropies_BT = score(decoder, rollouts, temperature=0.7)
        (logprobs_BT.sum() + entropies_BT.sum()).backward()
        return torch.cat([p.grad.reshape(-1) for p in decoder.parameters() if p.grad is not None])

    one = gradient()
    monkeypatch.setattr(functions, "_ROWS", 16)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        three = gradient()
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(three, one, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 processors")
@pytest.mark.parametrize("kind", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_every_width_of_vector(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processors without AVX-512 take other vectors and tiles: SSE, AVX2."""
    if kind == "x86-64-v4" and "avx512f" not in build._processor():
        pytest.skip("this processor has no AVX-512")
    decoder = decoder_like(reference("qwen3"), "qwen3")
    expected = rolled(decoder)
    flags = tuple(f"-march={kind}" if flag.startswith("-march") else flag for flag in build._FLAGS)
    monkeypatch.setattr(build, "_FLAGS", flags)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    try:
        lanes = {"x86-64": 4, "x86-64-v3": 8, "x86-64-v4": 16}[kind]
        assert packing._lanes() == lanes
        drawn = rolled(decoder)
        assert torch.equal(drawn.responses_BT, expected.responses_BT)
        torch.testing.assert_close(drawn.logprobs_BT, expected.logprobs_BT, atol=1e-4, rtol=0)
        logprobs_BT, _ = score(decoder, drawn, temperature=0.7)
        torch.testing.assert_close(logprobs_BT, drawn.logprobs_BT, atol=1e-4, rtol=0)
        logprobs_BT.sum().backward()
    finally:
        monkeypatch.undo()
        build.library.cache_clear()
    gradient = [p.grad.clone() for p in decoder.parameters() if p.grad is not None]
    decoder.zero_grad()
    score(decoder, expected, temperature=0.7)[0].sum().backward()
    for ours, parameter in zip(gradient, decoder.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "name", ["layers.1.mlp.up_proj", "layers.0.self_attn.q_proj", "layers.2.self_attn.k_proj", "lm_head"]
)
def test_weights_that_are_no_numbers_give_none(name: str) -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    rollouts = rolled(decoder)
    with torch.no_grad():
        decoder.get_submodule(name).weight[3, 5] = torch.nan  # type: ignore[union-attr,operator]  # a linear layer
    assert torch.isnan(rolled(decoder).logprobs_BT[:, 1:][rolled(decoder).mask_BT[:, 1:]]).all()
    with torch.no_grad():
        assert torch.isnan(score(decoder, rollouts, temperature=0.7)[0][rollouts.mask_BT]).any()


def test_gates_that_are_far_off() -> None:
    gates = torch.tensor([-1000.0, -178.0, -90.0, -88.0, 88.0, 90.0, 178.0, 1000.0])
    x = torch.cat([gates, torch.full((8,), 3.0)])[None].requires_grad_()
    expected = torch.cat([gates, torch.full((8,), 3.0)])[None].double().requires_grad_()
    swiglu(x).sum().backward()
    (F.silu(expected[:, :8]) * expected[:, 8:]).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(swiglu(x).double(), F.silu(expected[:, :8]) * expected[:, 8:], atol=1e-30, rtol=1e-6)
    torch.testing.assert_close(x.grad.double(), expected.grad, atol=1e-30, rtol=1e-6)


def test_long_sequences_are_trained_on_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    rollouts = rolled(decoder)
    short, _ = score(decoder, rollouts, temperature=0.7)
    monkeypatch.setattr(scoring, "native_hidden", lambda *_: pytest.fail("too long for it"))
    monkeypatch.setattr("isocompute.rl.native.scoring._LONGEST", 20)
    long, _ = score(decoder, rollouts, temperature=0.7)
    torch.testing.assert_close(long, short, atol=1e-5, rtol=0)


def test_a_row_without_a_token_says_nothing() -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    whole = rolled(decoder)
    mask_BT = whole.mask_BT.clone()
    mask_BT[3] = False
    rollouts = replace(whole, mask_BT=mask_BT)
    native, _ = score(decoder, rollouts, temperature=0.7)
    decoder.native = False
    plain, _ = score(decoder, rollouts, temperature=0.7)
    assert not native[3].any()
    torch.testing.assert_close(native, plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fast", [True, False])
def test_fast_is_the_switch(fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    inner = build.loaded

    def loaded() -> object:
        called.append("C")
        return inner()

    monkeypatch.setattr(build, "loaded", loaded)
    cell = make_cell(update_steps=1, engine={"fast": fast})
    run(cell, tmp_path / "run")
    assert bool(called) == fast


# Building


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A cache of its own, and the library to be found anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path / "isocompute"
    monkeypatch.undo()
    build.library.cache_clear()


def test_it_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.library() is not None
    (made,) = fresh.iterdir()
    assert made.suffix == ".so"
    build.library.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert build.library() is not None


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_the_plain_path_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    assert build.library() is None
    assert not fits_native(decoder)
    assert len(rolled(decoder)) == len(PROMPTS) * 7


def test_a_compiler_that_fails_leaves_nothing(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FLAGS", ("--no-such-flag",))
    assert build.library() is None
    assert list(fresh.iterdir()) == []


@pytest.mark.usefixtures("fresh")
def test_a_folder_of_somebody_else_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.os, "getuid", lambda: 12345)
    assert build.library() is None


def test_nor_one_that_others_can_write_to(fresh: Path) -> None:
    fresh.mkdir()
    fresh.chmod(0o777)
    assert build.library() is None


def test_a_user_without_a_home_has_the_plain_path(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(build.Path, "home", homeless)
    assert build.library() is None
    assert not fresh.exists()


def test_bfloat16_and_other_kinds_of_sampling_take_the_plain_path() -> None:
    decoder = decoder_like(reference("qwen3"), "qwen3")
    assert sampling.can_be_native(decoder, SamplingSettings(4))
    assert not sampling.can_be_native(decoder, SamplingSettings(4, top_p=0.9))
    assert not fits_native(decoder.to(torch.bfloat16))
    assert np.isfinite(rolled(decoder).logprobs_BT.numpy()).all()
