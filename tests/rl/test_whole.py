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

from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder
from isocompute.rl.fast import generate
from isocompute.rl.fast.generate import Generator
from isocompute.rl.fast.lane import Lane
from isocompute.rl.fast.stacked import Stack
from isocompute.rl.fast.weights import join_weights
from isocompute.rl.fast.whole.generation import WholeGeneration, blocks_on, compiled
from isocompute.rl.fast.whole.packing import word_addresses
from isocompute.rl.fast.whole.shape import Shape, shape_for
from isocompute.rl.sampler import Rollouts, SamplingSettings, left_padded, sample
from isocompute.rl.scoring import score
from tests.rl.on_cpu import OnCpu

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

    def generation(decoder: Decoder, ranks: int, tiles: int, unit: int, *, run: bool = True, **options: Any) -> Any:
        def made(*parts: Any, **rest: Any) -> WholeGeneration:
            return WholeGeneration(*parts, **rest, compile_kernel=compiler.compile)

        shape = Shape(decoder.config, ranks, tiles, unit)
        assert shape.fits
        monkeypatch.setattr(generate, "blocks_on", lambda _: 8)
        monkeypatch.setattr(generate, "shape_for", lambda *_, **__: shape)
        monkeypatch.setattr(generate, "WholeGeneration", made)
        generator = generator_of(decoder, **options)
        return generator.run() if run else generator

    return generation


def generator_of(
    decoder: Decoder,
    *,
    prompts: list[list[int]] = PROMPTS,
    per_prompt: int = 3,
    new: int = 6,
    stops: tuple[int, ...] = (),
    seeds: tuple[int, ...] = (5,),
) -> Generator:
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
    return generator


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
    "four-warps-a-row": ({"num_hidden_layers": 1}, (1, 1, 1), {"per_prompt": 1, "stops": (1, 4, 8, 9)}),
    "three-heads-a-group": (
        {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 71, "num_hidden_layers": 1},
        (1, 1, 10),
        {"prompts": LONG, "per_prompt": 4, "new": 12, "stops": (3,)},
    ),
    "yarn": (
        {"rope": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, "num_hidden_layers": 1},
        (4, 4, 9),
        {"prompts": LONG},
    ),
    "one-token": ({}, (2, 1, 5), {"new": 1, "stops": (3,)}),
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


FAMILIES: dict[str, dict[str, Any]] = {
    "tied": {},
    "bias-untied": {
        "model_type": "qwen2",
        "attention_bias": True,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "num_hidden_layers": 1,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_cells_of_a_stack_have_their_own_weights(family: str, whole: Any) -> None:
    decoders, seeds = [tiny(seed, **FAMILIES[family]) for seed in (1, 2)], (5, 9)
    alone = [whole(decoder, 1, 1, 4, seeds=(seed,), stops=(3,)) for decoder, seed in zip(decoders, seeds, strict=True)]
    together = whole(Stack(decoders), 2, 1, 5, seeds=seeds, stops=(3,))
    for i, own in enumerate(alone):
        part = together.rows(9 * i, 9 * i + 9)
        assert part.responses_BT.equal(own.responses_BT)
        torch.testing.assert_close(part.logprobs_BT, own.logprobs_BT, atol=0.02, rtol=0)


def test_one_generator_samples_from_weights_as_they_are_now(whole: Any, tmp_path: Path) -> None:
    """An update writes to the parameters in place; the kernel's copy is made anew for every generation."""
    decoder = tiny()
    generator = whole(decoder, 1, 1, 9, run=False)
    before = generator.run().responses_BT.clone()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.25)
        after = generator.run()
        again, _ = score(decoder, after, temperature=0.8)
    assert not before.equal(after.responses_BT)
    assert (again - after.logprobs_BT).abs().mean() < 0.02
    assert len(list(tmp_path.glob("*.so"))) == 3


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
    st.integers(1, 200),
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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("Could not find any NVRTC library."), "Could not find any NVRTC library"),
        (RuntimeError("Kernel compilation failed:\nk.cu(3): error: no such thing"), r"k.cu\(3\): error: no such thing"),
        (AttributeError("no set_shared_memory_config"), "no set_shared_memory_config"),
        (TypeError(), "TypeError"),
    ],
)
def test_without_a_compiler_tokens_have_kernels_of_their_own(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(generate, "blocks_on", lambda _: 132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", failing)
    with pytest.warns(UserWarning, match=rf"slower way: no kernel could be compiled \({said}\)\."):
        generator = Generator(
            tiny(), problems=1, per_prompt=2, prompt_slots=3, new_slots=2, stop_tokens=(), temperature=1.0
        )
    assert isinstance(generator.decoding, Lane)


def test_no_toolkit_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's function wants to know where CUDA's headers are, though none is included."""
    from torch.utils import cpp_extension

    seen: list[str | None] = []

    def compile_kernel(_source: str, _name: str, **_: Any) -> Any:
        seen.append(cpp_extension.CUDA_HOME)
        return lambda **_: None

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", compile_kernel)
    shape = Shape(tiny_config(), 1, 1, 8)
    first = compiled(shape, "gather_words")
    assert seen[0] and cpp_extension.CUDA_HOME is None
    assert compiled(Shape(tiny_config(), 1, 2, 32), "gather_words") is first, "one for all shapes"
    assert len(seen) == 1


def test_more_cells_than_pairs_of_blocks_have_a_block_each() -> None:
    shape = shape_for(tiny_config(), cells=100, cell_rows=16, blocks=132)
    assert shape and shape.ranks == 1
