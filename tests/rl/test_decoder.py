"""The decoder and its checkpoints against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from isocompute.core.errors import InputError
from isocompute.rl.model.checkpoint import load_decoder, save_decoder
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder, Norm
from isocompute.rl.rollout.engine import SamplingSettings
from tests.rl.models import CONFIGS, eager, logits_of, reference, requests


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name)
    model.save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path)
    tokens = torch.randint(0, 97, (3, 150), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(logits_of(decoder, tokens), model(tokens).logits, atol=1e-4, rtol=0)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LAYOUTS: dict[str, dict[str, Any]] = {
    "scaling-beside-parameters": {"rope_scaling": YARN, "rope_parameters": PLAIN},
    "scaling-without-theta": {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "theta-beside": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0, "rope_parameters": None},
    "original-beside": {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
        "original_max_position_embeddings": 16,
    },
    "original-beside-wins": {"rope_parameters": {**YARN}, "original_max_position_embeddings": 64},
    "original-nowhere": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
    "factor-null": {"rope_parameters": {**YARN, "factor": None}},
    "mscale": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    "mscale-equal": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "mscale-zero": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0}},
    "attention-factor": {"rope_parameters": {**YARN, "attention_factor": 1.3, "mscale": 2.0, "mscale_all_dim": 0.7}},
    "not-truncated": {"rope_parameters": {**YARN, "truncate": False}},
    "betas": {"rope_parameters": {**YARN, "beta_fast": 4, "beta_slow": 0.5, "truncate": False}},
    "betas-meet": {"rope_parameters": {**YARN, "beta_fast": 1000, "beta_slow": 999}},
}


def rewrite_config(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_rope_is_read_as_transformers_reads_it(name: str, layout: str, tmp_path: Path) -> None:
    """Every place and option of a scaling, and again of what is written back."""
    reference(name).save_pretrained(tmp_path)
    rewrite_config(tmp_path, LAYOUTS[layout])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    decoder = load_decoder(tmp_path)
    tokens = torch.randint(0, 97, (2, 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens).logits
        torch.testing.assert_close(logits_of(decoder, tokens), expected, atol=2e-4, rtol=0)
        save_decoder(decoder, tmp_path / "again")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32).eval()
        torch.testing.assert_close(again(tokens).logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {**YARN, "long_factor": [1.0]}}, "'long_factor' is not known"),
        ({"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, "'partial_rotary_factor' other than 1"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' other than 1"),
        ({"rope_parameters": {**PLAIN, "rope_type": "dynamic"}}, "rope_type 'dynamic' is not one of"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: 'factor' is missing, which rope_type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor' is missing"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 1}},
            "'high_freq_factor' is not above",
        ),
        ({"rope_parameters": {**YARN, "factor": "4"}}, "'factor' is '4', not a number above 0"),
        ({"rope_parameters": {**YARN, "truncate": 0}}, "'truncate' is 0, not true or false"),
        ({"rope_parameters": [1, 2]}, r"'rope_parameters' is \[1, 2\], not a table"),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "use_sliding_window to false"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "names 'sliding_attention'"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    reference("qwen3").save_pretrained(tmp_path)
    rewrite_config(tmp_path, changes)
    with pytest.raises(InputError, match=message):
        DecoderConfig.read(tmp_path)


@pytest.mark.parametrize("name", ["llama-gqa-tied", "qwen2", "qwen3"])
def test_greedy_decoding_is_token_identical(name: str, tmp_path: Path) -> None:
    model = reference(name, seed=3)
    model.save_pretrained(tmp_path)
    prompts = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50]]
    out = eager(load_decoder(tmp_path), requests(prompts, seed=0, temperature=0.0), SamplingSettings(64))
    for row, prompt in enumerate(prompts):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(prompt) :]
        assert out.responses_BT[row].tolist() == expected.tolist()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shard_bytes", [2**30, 40_000], ids=["one", "sharded"])
def test_written_checkpoints_open_in_transformers(name: str, shard_bytes: int, tmp_path: Path) -> None:
    model = reference(name)
    model.save_pretrained(tmp_path / "theirs")
    decoder = load_decoder(tmp_path / "theirs")
    save_decoder(decoder, tmp_path / "ours", shard_bytes=shard_bytes)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == (shard_bytes < 2**30)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    tokens = torch.randint(0, 97, (2, 90), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, atol=1e-5, rtol=0)
        ours = load_decoder(tmp_path / "ours")
        torch.testing.assert_close(logits_of(ours, tokens), model(tokens).logits, atol=1e-4, rtol=0)


def test_the_head_is_fp32_on_request() -> None:
    config = DecoderConfig.from_json(CONFIGS["qwen3"].to_dict())
    decoder = Decoder(config).to(torch.bfloat16)
    hidden = torch.randn(4, 64).to(torch.bfloat16)
    exact = hidden.double() @ decoder.lm_head.weight.double().T
    with torch.no_grad():
        fine = (decoder.logits(hidden).double() - exact).abs().max()
        coarse = (decoder.logits(hidden, fp32=False).double() - exact).abs().max()
    assert fine < 1e-5 < coarse


def test_rewriting_a_checkpoint_replaces_it_whole(tmp_path: Path) -> None:
    reference("qwen3").save_pretrained(tmp_path / "a")
    decoder = load_decoder(tmp_path / "a")
    save_decoder(decoder, tmp_path / "b")
    with torch.no_grad():
        decoder.norm.weight.add_(1.0)
    save_decoder(decoder, tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    torch.testing.assert_close(load_decoder(tmp_path / "b").norm.weight, decoder.norm.weight)


def test_bad_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        load_decoder(tmp_path)
    reference("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(InputError, match="'mamba' is not supported"):
        load_decoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    with pytest.raises(InputError, match="do not belong together"):
        load_decoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "model.safetensors")
    dropped = weights.pop("model.layers.1.mlp.up_proj.weight")
    assert dropped is not None
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight' is missing"):
        load_decoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(InputError, match="damaged"):
        load_decoder(tmp_path)


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
