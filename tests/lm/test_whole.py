"""The kernel of a whole generation, its own source compiled for the CPU, against the plain sampler and scorer."""

from __future__ import annotations

import copy
import ctypes
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isocompute.engines.lm.config import DecoderConfig
from isocompute.engines.lm.decoder import Decoder
from isocompute.engines.lm.fast import generate
from isocompute.engines.lm.fast.generate import Generator
from isocompute.engines.lm.fast.lane import Lane
from isocompute.engines.lm.fast.stacked import Stack
from isocompute.engines.lm.fast.weights import join_weights
from isocompute.engines.lm.fast.whole.generation import WholeGeneration, blocks_on
from isocompute.engines.lm.fast.whole.packing import word_addresses
from isocompute.engines.lm.fast.whole.shape import Shape, shape_for
from isocompute.engines.lm.sampler import Rollouts, SamplingSettings, left_padded, sample
from isocompute.engines.lm.scoring import score
from tests.lm.on_cpu import OnCpu

pytest.importorskip("triton.runtime.interpreter", reason="prompts are read by Triton's kernels, on Linux alone")
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler of C++"),
]
PROMPTS = [[6, 3, 7, 2], [9, 4, 8, 5, 6, 2], [7, 2]]


def tiny_config(**changes: Any) -> DecoderConfig:
    values: dict[str, Any] = {
        "model_type": "qwen3",
        "vocab_size": 29,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    return DecoderConfig(**{**values, **changes})


def tiny(seed: int = 1, **changes: Any) -> Decoder:
    torch.manual_seed(seed)
    decoder = Decoder(tiny_config(**changes))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(0.0 if parameter.ndim > 1 else 1.0, 0.2)
    return decoder.to(torch.bfloat16).eval()


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Generations of a given shape, whatever the generator would choose."""
    compiler = OnCpu(tmp_path)

    def generation(decoder: Decoder, ranks: int, tiles: int, unit: int, **options: Any) -> Rollouts:
        def made(*parts: Any, **rest: Any) -> WholeGeneration:
            return WholeGeneration(*parts, **rest, compile_kernel=compiler.compile)

        shape = Shape(decoder.config, ranks, tiles, unit)
        assert shape.fits
        monkeypatch.setattr(generate, "blocks_on", lambda _: 8)
        monkeypatch.setattr(generate, "shape_for", lambda *_, **__: shape)
        monkeypatch.setattr(generate, "WholeGeneration", made)
        return sampled(decoder, **options)

    return generation


def sampled(
    decoder: Decoder,
    *,
    prompts: list[list[int]] = PROMPTS,
    per_prompt: int = 3,
    new: int = 6,
    stops: tuple[int, ...] = (),
    seeds: tuple[int, ...] = (5,),
) -> Rollouts:
    width = max(map(len, prompts))
    generator = Generator(
        decoder,
        problems=len(prompts),
        per_prompt=per_prompt,
        prompt_slots=width,
        new_slots=new,
        stop_tokens=stops,
        temperature=0.8,
    )
    generator.prompts_PT.copy_(left_padded(prompts, 0).repeat(len(seeds), 1))
    generator.padding_P.copy_(torch.tensor([width - len(prompt) for prompt in prompts] * len(seeds)))
    generator.seed.copy_(torch.tensor(seeds))
    generator.first_row.copy_(torch.tensor([1000 * seed for seed in seeds]))
    return generator.run()


LONG = [[6, 3, 7, 2] * 5, [9, 4, 8, 5, 6, 2] * 6, [7, 2]]
CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int], dict[str, Any]]] = {
    "alone": ({}, (1, 1, 8), {}),
    "two-blocks": ({}, (2, 1, 5), {"stops": (1, 4, 8, 9)}),
    "four-blocks": ({}, (4, 1, 9), {"stops": (1, 4, 8, 9)}),
    "gqa-long-prompts": (
        {"num_key_value_heads": 2, "head_dim": 48, "hidden_size": 128, "vocab_size": 103},
        (2, 2, 24),
        {"prompts": LONG, "per_prompt": 8, "new": 36, "stops": (3,)},
    ),
    "four-tiles": (
        {"head_dim": 48, "hidden_size": 192, "num_hidden_layers": 1},
        (1, 4, 51),
        {"per_prompt": 17, "new": 18, "stops": (3, 9)},
    ),
    "qwen2-bias": (
        {"model_type": "qwen2", "attention_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": False},
        (2, 1, 7),
        {"per_prompt": 8, "stops": (3, 9)},
    ),
    "llama-one-group-many-words": (
        {"model_type": "llama", "num_key_value_heads": 1, "tie_word_embeddings": False, "vocab_size": 300},
        (1, 2, 30),
        {"per_prompt": 20, "stops": (3, 9)},
    ),
    "eight-heads": ({"num_attention_heads": 8, "num_key_value_heads": 8}, (1, 1, 16), {"per_prompt": 7}),
}


def gap(a: torch.Tensor, b: torch.Tensor, of: Rollouts) -> float:
    return float((a - b)[of.mask_BT].abs().mean())


@pytest.mark.parametrize("name", CASES)
def test_it_samples_what_the_plain_sampler_samples(name: str, whole: Any) -> None:
    changes, shape, options = CASES[name]
    decoder = tiny(**changes)
    got = whole(decoder, *shape, **options)
    per_prompt, new, stops = options.get("per_prompt", 3), options.get("new", 6), options.get("stops", ())
    prompts = options.get("prompts", PROMPTS)
    settings = SamplingSettings(new, temperature=0.8, stop_tokens=stops)
    numbers = list(range(5000, 5000 + len(prompts) * per_prompt))
    plain = sample(decoder, prompts, settings, seed=5, per_prompt=per_prompt, row_numbers=numbers)
    used = plain.mask_BT.shape[1]
    same_BT = (got.responses_BT[:, :used] == plain.responses_BT) & plain.mask_BT
    assert same_BT[:, 0].all() and same_BT.sum() > plain.mask_BT.sum() / 2, (
        "a token that rounding turns changes the rest"
    )
    with torch.no_grad():
        again, _ = score(decoder, got, temperature=0.8)
        exact, _ = score(copy.deepcopy(decoder).float(), got, temperature=0.8)
    rounding = gap(again, exact, got)
    assert gap(got.logprobs_BT, again, got) < 0.4 * rounding
    assert gap(got.logprobs_BT, exact, got) < 1.1 * rounding, "no further from FP32 than the plain pass is"
    assert not got.logprobs_BT[~got.mask_BT].any() and not got.responses_BT[~got.mask_BT].any()
    ended = torch.isin(got.responses_BT, torch.tensor(stops, dtype=torch.long)) & got.mask_BT
    assert got.stopped_B.equal(ended.any(dim=1))
    assert got.lengths_B.equal(torch.where(ended.any(dim=1), ended.long().argmax(dim=1) + 1, torch.tensor(new)))


def test_a_generation_ends_where_all_rows_have_stopped(whole: Any) -> None:
    """Of weights that were asked for ahead, none may arrive after that: the CPU's copies would say so."""
    got = whole(tiny(), 2, 1, 9, stops=tuple(range(29)), new=40)
    assert got.lengths_B.eq(1).all() and got.stopped_B.all()


def test_cells_of_a_stack_have_their_own_weights(whole: Any) -> None:
    decoders, seeds = [tiny(seed) for seed in (1, 2)], (5, 9)
    alone = [whole(decoder, 1, 1, 4, seeds=(seed,), stops=(3,)) for decoder, seed in zip(decoders, seeds, strict=True)]
    together = whole(Stack(decoders), 2, 1, 5, seeds=seeds, stops=(3,))
    for i, own in enumerate(alone):
        part = together.rows(9 * i, 9 * i + 9)
        assert part.responses_BT.equal(own.responses_BT)
        torch.testing.assert_close(part.logprobs_BT, own.logprobs_BT, atol=0.02, rtol=0)


def test_new_weights_are_sampled_from(whole: Any, tmp_path: Path) -> None:
    """An update writes to the parameters; the kernel's copy is made anew for every generation."""
    decoder = tiny()
    before = whole(decoder, 1, 1, 9)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.25)
    after = whole(decoder, 1, 1, 9)
    assert not before.responses_BT.equal(after.responses_BT)
    with torch.no_grad():
        again, _ = score(decoder, after, temperature=0.8)
    assert (again - after.logprobs_BT).abs().mean() < 0.02
    assert len(list(tmp_path.glob("*.so"))) == 3, "compiled once"


def test_words_lie_as_the_tensor_cores_want_them() -> None:
    """The first product of a token is the head: its first eight columns, 32 inputs, by lanes."""
    decoder = tiny()
    shape = Shape(decoder.config, 2, 1, 8)
    sources = word_addresses(decoder, join_weights(decoder), shape)
    assert len(sources["weights"]) * 4 == 2 * shape.weight_bytes
    words = [ctypes.c_uint32.from_address(int(at)).value for at in sources["weights"][:128]]
    head = decoder.lm_head.weight.detach().view(torch.int16).numpy().astype(np.uint16)
    for lane in (0, 5, 31):
        for word in range(4):
            column, first = lane // 4, 2 * (lane % 4) + 8 * word
            assert words[4 * lane + word] == int(head[column, first]) | int(head[column, first + 1]) << 16
    padding = shape.head_columns - decoder.config.vocab_size
    head_words = sources["weights"][: shape.head_columns * 32]
    assert (head_words == 0).sum() == padding * 32, "columns that are not there are zeros"


def test_every_weight_is_somewhere_once() -> None:
    decoder = tiny()
    shape = Shape(decoder.config, 4, 1, 8)
    sources = word_addresses(decoder, join_weights(decoder), shape)
    products = [p for name, p in decoder.named_parameters() if p.ndim == 2 and "embed" not in name]
    found = sources["weights"][sources["weights"] > 0]
    head = decoder.lm_head.weight
    own = (found < head.data_ptr()) | (found >= head.data_ptr() + 2 * head.numel())
    assert len(np.unique(found[own])) == own.sum() == sum(p.numel() for p in products if p is not head) // 2
    assert (~own).sum() == 4 * head.numel() // 2, "every block has the whole head"


@given(
    st.integers(1, 20_000),
    st.integers(1, 32),
    st.sampled_from([64, 128, 192, 256]),
    st.sampled_from([(4, 4), (8, 4), (4, 1), (8, 8), (2, 2), (6, 2)]),
    st.sampled_from([16, 32, 48, 64]),
    st.sampled_from([96, 192, 512, 1024]),
    st.sampled_from([29, 103, 500]),
    st.sampled_from([114, 132]),
)
def test_a_shape_holds_all_rows_in_the_memory_there_is(
    rows: int,
    cells: int,
    width: int,
    heads: tuple[int, int],
    size: int,
    inner: int,
    words: int,
    blocks: int,
) -> None:
    config = tiny_config(
        hidden_size=width,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=size,
        intermediate_size=inner,
        vocab_size=words,
    )
    shape = shape_for(config, cells=cells, cell_rows=rows, blocks=blocks)
    if shape is None:
        return
    assert 1 <= shape.unit <= 16 * shape.tiles and shape.unit <= rows
    assert shape.shared_bytes <= 232_448 and min(shape.stages) >= 3
    assert all(place % 128 == 0 for place in shape.places.values())
    assert 8 % (shape.own_groups // shape.task_groups) == 0
    units = cells * -(-rows // shape.unit)
    assert units * shape.ranks <= blocks or shape.ranks == 1, "those that send to each other all run"


def test_few_rows_divide_the_weights_and_many_do_not() -> None:
    config = tiny_config(hidden_size=192, intermediate_size=512, head_dim=48, num_hidden_layers=4, vocab_size=103)
    shapes = {rows: shape_for(config, cells=1, cell_rows=rows, blocks=132) for rows in (64, 256, 1024, 2048, 8192)}
    assert {rows: (s.ranks, s.tiles, s.unit) for rows, s in shapes.items() if s} == {
        64: (2, 1, 1),
        256: (2, 1, 4),
        1024: (2, 1, 16),
        2048: (1, 1, 16),
        8192: (1, 4, 63),
    }
    stacked = shape_for(config, cells=16, cell_rows=256, blocks=132)
    assert stacked and (stacked.ranks, stacked.tiles, stacked.unit) == (1, 2, 32)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 576},
        {"hidden_size": 96},
        {"head_dim": 24},
        {"head_dim": 96},
        {"intermediate_size": 100},
        {"num_attention_heads": 9, "num_key_value_heads": 1},
        {"vocab_size": 40_000},
    ],
)
def test_other_models_go_the_other_way(changes: dict[str, Any]) -> None:
    assert shape_for(tiny_config(**changes), cells=1, cell_rows=256, blocks=132) is None


def test_a_cpu_has_kernels_for_each_token() -> None:
    decoder = tiny()
    assert blocks_on(decoder.embed_tokens.weight) == 0
    generator = Generator(
        decoder, problems=1, per_prompt=2, prompt_slots=3, new_slots=2, stop_tokens=(), temperature=1.0
    )
    assert isinstance(generator.decoding, Lane)


class _Machine:
    """What PyTorch says of a GPU."""

    def __init__(self, major: int) -> None:
        self.major, self.multi_processor_count = major, 132


class _OnGpu:
    """As much of a tensor on a GPU as `blocks_on` asks for."""

    dtype, is_cuda = torch.bfloat16, True

    def __init__(self, index: int = 0, dtype: torch.dtype = torch.bfloat16) -> None:
        self.device, self.dtype = torch.device("cuda", index), dtype


@pytest.mark.parametrize(
    ("weight", "major", "blocks"),
    [
        (_OnGpu(), 9, 132),
        (_OnGpu(), 8, 0),
        (_OnGpu(), 10, 0),
        (_OnGpu(1), 9, 0),
        (_OnGpu(dtype=torch.float32), 9, 0),
    ],
    ids=["hopper", "ampere", "blackwell", "another-gpu", "fp32"],
)
def test_where_the_kernel_runs(weight: Any, major: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: _Machine(major))
    assert blocks_on(weight) == blocks


def test_without_a_compiler_tokens_have_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError("Could not find any NVRTC library")

    monkeypatch.setattr(generate, "blocks_on", lambda _: 132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", failing)
    with pytest.warns(UserWarning, match="slower way: no kernel could be compiled .Could not find any NVRTC library"):
        generator = Generator(
            tiny(), problems=1, per_prompt=2, prompt_slots=3, new_slots=2, stop_tokens=(), temperature=1.0
        )
    assert isinstance(generator.decoding, Lane)
