"""The captured engine samples what the reference engine samples; its kernels, in Triton's interpreter, what their plain
twins compute. Graphs are captured on a GPU alone: here the same steps run one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from isocompute.core.recipe import make_recipe
from isocompute.rl.lengths import Interruption
from isocompute.rl.model.checkpoint import load_decoder, load_model
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout import captured as captured_module
from isocompute.rl.rollout import kernels
from isocompute.rl.rollout.captured import CapturedEngine
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import PromptGroup, Rollouts, SamplingSettings, sample
from isocompute.rl.tasks import ProblemsSpec, make_tasks
from isocompute.rl.update import score
from tests.rl.models import CONFIGS, eager, requests

PROMPTS = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50], [3, 3]]
PHRASE = Interruption((21, 22, 23), (4, 9), 5, marker=23)
BLOCKS = 9000
"""A vocabulary of two of the kernel's blocks and a part of a third."""


def random_decoder(config: dict[str, Any], *, std: float) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig.from_json(config)).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=std)
    return decoder


@pytest.fixture(scope="module")
def small() -> Decoder:
    return random_decoder(CONFIGS["qwen3"].to_dict(), std=0.25)


@pytest.fixture(scope="module")
def grouped() -> Decoder:
    """Three query heads for each key-value head."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 2}
    return random_decoder({**CONFIGS["llama"].to_dict(), **heads, "vocab_size": BLOCKS}, std=0.15)


def text(ids: Sequence[int]) -> str:
    return "".join(f"<{i}>" for i in ids)


def assert_same(got: Rollouts, wanted: Rollouts) -> None:
    for name in ("responses_BT", "lengths_B", "stopped_B", "forced_BT", "versions_BT", "prompt_B"):
        mine, yours = getattr(got, name), getattr(wanted, name)
        assert (mine is None) == (yours is None)
        assert mine is None or torch.equal(mine, yours), name
    assert got.prompts == wanted.prompts
    torch.testing.assert_close(got.logprobs_BT, wanted.logprobs_BT, atol=2e-5, rtol=1e-5)


def mixed(temperatures: Sequence[float], *, per_prompt: int = 5) -> list[PromptGroup]:
    """A group for each prompt; temperatures take turns."""
    by = [requests(PROMPTS, seed=5, per_prompt=per_prompt, temperature=t) for t in temperatures]
    return [by[i % len(by)][i] for i in range(len(PROMPTS))]


STOPS = tuple(range(60, 70))
SETTINGS = {
    "plain": SamplingSettings(24),
    "stop tokens": SamplingSettings(24, stop_tokens=STOPS),
    "nucleus": SamplingSettings(24, top_p=0.7, stop_tokens=STOPS),
    "stop strings": SamplingSettings(24, stop_tokens=STOPS, stop_strings=("7><", "<11>"), text=text),
    "interruption": SamplingSettings(24, stop_tokens=STOPS, interruption=PHRASE),
    "versions": SamplingSettings(24, keep_versions=True),
    "everything": SamplingSettings(
        24, top_p=0.9, stop_tokens=STOPS, stop_strings=("7><",), text=text, interruption=PHRASE, keep_versions=True
    ),
}


@pytest.mark.parametrize("rows", [20, 8, 5, 3], ids=lambda rows: f"{rows} slots")
@pytest.mark.parametrize("name", SETTINGS)
def test_captured_and_eager_sample_the_same(name: str, rows: int, small: Decoder) -> None:
    """Twenty rows in groups of five: more groups than slots, and groups larger than the engine."""
    settings, groups = SETTINGS[name], mixed([1.0, 0.6, 0.0])
    engine = CapturedEngine(small, settings, rows=rows, prompt_tokens=7)
    assert_same(sample(engine, groups), eager(small, groups, settings))
    assert engine.busy == 0


def test_groups_of_many_sizes(small: Decoder) -> None:
    """Slots of rows and of prompts become free at different times."""
    settings = SETTINGS["stop tokens"]
    groups = [
        PromptGroup(10 + i, group.prompt, group.streams[:size], group.temperature)
        for i, (group, size) in enumerate(zip(mixed([1.0, 0.6], per_prompt=9) * 3, [1, 9, 2, 1, 5, 7] * 2, strict=True))
    ]
    for rows in (6, 13):
        engine = CapturedEngine(small, settings, rows=rows, prompt_tokens=7)
        assert_same(sample(engine, groups), eager(small, groups, settings))


def test_the_head_in_parts(small: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large vocabulary: logits of a few rows at a time, at the first token and at the others."""
    settings = SETTINGS["stop tokens"]
    monkeypatch.setattr(captured_module, "_LOGITS", 97 * 3)
    for per_prompt in (1, 5):
        groups = mixed([1.0, 0.0], per_prompt=per_prompt)
        engine = CapturedEngine(small, settings, rows=20, prompt_tokens=7)
        assert_same(sample(engine, groups), eager(small, groups, settings))


def moved(decoder: Decoder) -> Decoder:
    other = copy.deepcopy(decoder)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return other


def test_weights_loaded_in_flight(small: Decoder) -> None:
    """Rows in flight keep their keys and values, whatever happens to the decoder that was loaded."""
    settings, groups, later = SamplingSettings(30, keep_versions=True), mixed([1.0, 0.6]), moved(small)
    captured = CapturedEngine(small, settings, rows=20, prompt_tokens=7)
    for group in groups:
        captured.submit(group)
    assert not captured.step()
    captured.load(given := copy.deepcopy(later), 3)
    with torch.no_grad():
        given.norm.weight.fill_(7.0)  # the engine has a copy
    mine = drain(captured)
    assert mine.versions_BT is not None and set(mine.versions_BT.unique().tolist()) == {0, 3}
    older = int((mine.versions_BT[0] == 0).sum())
    assert bool((mine.versions_BT == torch.tensor([0] * older + [3] * (30 - older))).all())
    reference = EagerEngine(small, settings, rows=20, prompt_tokens=7)
    for group in groups:
        reference.submit(group)
    for _ in range(older):
        assert not reference.step()
    reference.load(later, 3)
    assert_same(mine, drain(reference))
    assert not torch.equal(mine.responses_BT, eager(small, groups, settings).responses_BT)


def drain(engine: CapturedEngine | EagerEngine) -> Rollouts:
    done: dict[int, Rollouts] = {}
    while engine.busy:
        done |= {finished.key: finished.rollouts for finished in engine.step()}
    return Rollouts.join([done[key] for key in sorted(done)])


def test_groups_submitted_in_flight(small: Decoder) -> None:
    settings, groups = SETTINGS["stop tokens"], mixed([1.0])
    engine = CapturedEngine(small, settings, rows=12, prompt_tokens=7)
    done: dict[int, Rollouts] = {}
    for group in groups:
        engine.submit(group)
        done |= {finished.key: finished.rollouts for finished in engine.step()}
    while engine.busy:
        done |= {finished.key: finished.rollouts for finished in engine.step()}
    assert_same(Rollouts.join([done[key] for key in range(4)]), eager(small, groups, settings))


def test_the_built_in_model() -> None:
    model = load_model("tiny")
    tasks = make_tasks(ProblemsSpec.of({"source": "chain:1-8", "size": 30}), model.folder)
    settings = SamplingSettings(tasks.max_new_tokens, stop_tokens=model.stop_tokens)
    groups = requests(tasks.train.prompts, seed=5, per_prompt=4)
    engine = CapturedEngine(model.decoder, settings, rows=32, prompt_tokens=40)
    assert_same(sample(engine, groups), eager(model.decoder, groups, settings))


# The kernels


@pytest.fixture
def no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of as many rows as there are, which is quicker here."""
    monkeypatch.setattr(captured_module, "_FEWEST_ROWS", 4)


def with_kernels(engine: CapturedEngine) -> CapturedEngine:
    engine._attend, engine._advance = kernels.attend, kernels.advance
    return engine


@pytest.mark.usefixtures("no_padding")
@pytest.mark.parametrize("name", ["stop tokens", "interruption", "nucleus"])
def test_the_kernels_sample_the_same(name: str, grouped: Decoder) -> None:
    stops = tuple(range(0, BLOCKS, 25))
    settings = {
        "stop tokens": SamplingSettings(10, stop_tokens=stops, keep_versions=True),
        "interruption": SamplingSettings(10, interruption=Interruption((21, 22), (2, 5), 3, marker=22)),
        "nucleus": SamplingSettings(10, top_p=0.5, stop_tokens=stops),
    }[name]
    groups = mixed([1.0, 0.6, 0.0], per_prompt=2)
    engine = with_kernels(CapturedEngine(grouped, settings, rows=8, prompt_tokens=7))
    assert_same(sample(engine, groups), eager(grouped, groups, settings))


def filled_state(decoder: Decoder, settings: SamplingSettings, *, rows: int) -> tuple[kernels.State, Tensor]:
    """Rows with prompts and responses of many lengths, some of them dead, in a shuffled order with a padding row."""
    generator = torch.Generator().manual_seed(3)
    state = kernels.State.empty(
        decoder.config, settings, rows=rows, prompts=4, prompt_tokens=130, like=decoder.embed_tokens.weight
    )
    for tensor in (state.prompt_kv_LQESK, state.own_kv_LRESK):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    lengths = torch.tensor([1, 64, 65, 129, 130, 33, 2, 90])
    state.prompt_R[:rows] = torch.arange(rows, dtype=torch.int32) % 4
    state.prompt_length_R[:rows] = lengths[:rows].to(torch.int32)
    state.length_R[:rows] = (torch.arange(rows) * 19 % 128 + 1).to(torch.int32)
    state.stream_R[:rows] = torch.randint(2**62, (rows,), generator=generator)
    state.temperature_R[:rows] = torch.tensor([1.0, 0.6, 0.0, 1.4])[torch.arange(rows) % 4]
    state.alive_R[:rows] = (torch.arange(rows) != 5).to(torch.int32)
    state.limit_R[:rows] = settings.max_new_tokens
    return state, torch.cat([torch.randperm(rows, generator=generator), torch.tensor([rows])])


@pytest.fixture
def bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter keeps bf16 numbers as 16-bit integers and would multiply these."""
    inner = InterpreterBuilder.create_dot

    def numbers(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *more: Any) -> TensorHandle:
        return inner(self, numbers(a), numbers(b), *more)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attend_computes_what_its_twin_computes(dtype: torch.dtype, tolerance: float, grouped: Decoder) -> None:
    decoder, settings = copy.deepcopy(grouped).to(dtype), SamplingSettings(130)
    generator = torch.Generator().manual_seed(4)
    mine, rows_A = filled_state(decoder, settings, rows=8)
    yours = copy.deepcopy(mine)
    qkv_AEK = torch.randn((9, 10, 64), generator=generator).to(dtype)
    alive_A = mine.alive_R[rows_A] > 0
    for layer in range(2):
        out = kernels.attend(mine, layer, rows_A, qkv_AEK, 6)
        wanted = kernels.attend_plain(yours, layer, rows_A, qkv_AEK, 6)
        assert out.shape == wanted.shape == (9, 6, 64)
        assert float((out[alive_A].float() - wanted[alive_A].float()).abs().max()) < tolerance
    slots = rows_A[alive_A]
    assert torch.equal(mine.own_kv_LRESK[:, slots], yours.own_kv_LRESK[:, slots])
    assert torch.equal(mine.prompt_kv_LQESK, yours.prompt_kv_LQESK)


ADVANCES: dict[str, SamplingSettings] = {
    "plain": SamplingSettings(130, stop_tokens=(5, 8999)),
    "versions": SamplingSettings(130, stop_tokens=(5,), keep_versions=True),
    "interruption": SamplingSettings(130, interruption=Interruption((21, 22, 23), (20, 60), 8, marker=23)),
    "no marker": SamplingSettings(130, interruption=Interruption((21,), (20, 60), 8)),
}


@pytest.mark.parametrize("vocabulary", [BLOCKS, 4096, 97])
@pytest.mark.parametrize("name", ADVANCES)
def test_advance_does_what_its_twin_does(name: str, vocabulary: int, grouped: Decoder) -> None:
    settings = ADVANCES[name]
    generator = torch.Generator().manual_seed(6)
    mine, rows_A = filled_state(grouped, settings, rows=8)
    mine.version.fill_(4)
    if settings.interruption is not None:  # before the phrase, at each of its tokens, after it, and without one
        at = torch.tensor([3, 0, -1, -2, -3, 2, 40, -500], dtype=torch.int32)
        mine.interrupt_at_R[:8] = torch.where(at == -500, torch.tensor(-1), mine.length_R[:8] + at).to(torch.int32)
        mine.limit_R[:8] = mine.interrupt_at_R[:8] + len(settings.interruption.phrase) + 8
        mine.limit_R[7] = 130
    yours = copy.deepcopy(mine)
    logits_PV = 4 * torch.randn((5, vocabulary), generator=generator)
    logits_PV[0, torch.randperm(vocabulary, generator=generator)[: vocabulary // 2]] = -torch.inf  # a nucleus
    logits_PV[1, :-1] = -torch.inf  # the last token alone
    if settings.interruption is not None:
        logits_PV[2, 23] = 60.0  # the marker, before its time or after it
    source_A = torch.arange(9) % 5
    for _ in range(2):
        kernels.advance(mine, settings, rows_A, logits_PV, source_A)
        kernels.advance_plain(yours, settings, rows_A, logits_PV, source_A)
        for field in vars(mine):
            if field == "logprobs_RS":
                torch.testing.assert_close(mine.logprobs_RS, yours.logprobs_RS, atol=1e-5, rtol=1e-5)
            else:
                assert torch.equal(getattr(mine, field), getattr(yours, field)), field
    assert not torch.equal(mine.length_R, filled_state(grouped, settings, rows=8)[0].length_R)


def test_draws_of_the_kernel_follow_the_probabilities(grouped: Decoder) -> None:
    """Every block of the vocabulary takes part as often as its probability says."""
    rows = 400
    settings = SamplingSettings(1)
    state = kernels.State.empty(
        grouped.config, settings, rows=rows, prompts=1, prompt_tokens=1, like=grouped.embed_tokens.weight
    )
    state.stream_R.copy_(torch.from_numpy(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, rows + 1)))
    state.alive_R[:rows], state.limit_R[:rows] = 1, 1
    logits_PV = torch.randn((1, BLOCKS), generator=torch.Generator().manual_seed(7))
    source_A = torch.zeros(rows, dtype=torch.long)
    kernels.advance(state, settings, torch.arange(rows), logits_PV, source_A)
    share = (state.tokens_RS[:rows, 0] // 4096).bincount(minlength=3) / rows
    wanted = torch.stack([part.sum() for part in logits_PV.softmax(-1)[0].split(4096)])
    assert float((share - wanted).abs().max()) < 4 * 0.5 / rows**0.5
    assert len(state.tokens_RS[:rows, 0].unique()) > 300


# A real model


@pytest.fixture(scope="module")
def chat(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Any, tuple[int, ...]]:
    """SmolLM2 and problems in its chat template."""
    path = tmp_path_factory.mktemp("problems") / "sums.jsonl"
    lines = [f'{{"question": "What is {a} + {a + 3}? Only the number.", "answer": "{2 * a + 3}"}}' for a in range(8)]
    path.write_text("\n".join(lines) + "\n")
    model = load_model(str(smollm2))
    table = {"source": str(path), "validation": 3, "max_new_tokens": 20}
    return model.decoder, make_tasks(ProblemsSpec.of(table), smollm2), model.stop_tokens


@pytest.mark.usefixtures("no_padding")
def test_smollm2_samples_the_same(chat: tuple[Decoder, Any, tuple[int, ...]]) -> None:
    """Prompts in the chat template, stops of the model, temperatures 1 and 0; then the answers are graded."""
    decoder, tasks, stops = chat
    settings, prompts = SamplingSettings(12, stop_tokens=stops), tasks.train.prompts[:3]
    assert tasks.train.text(prompts[0]).startswith("<|im_start|>")
    by = [requests(prompts, seed=5, per_prompt=2, temperature=t) for t in (1.0, 0.0, 0.6)]
    groups = [by[i][i] for i in range(3)]
    engine = CapturedEngine(decoder, settings, rows=4, prompt_tokens=max(map(len, prompts)))
    got, wanted = sample(engine, groups), eager(decoder, groups, settings)
    assert_same(got, wanted)
    assert got.stopped_B.any()
    for row, length in enumerate(got.lengths_B.tolist()):
        response = got.responses_BT[row, :length].tolist()
        assert bool(got.stopped_B[row]) == (response[-1] in stops) and not set(response[:-1]) & set(stops)
        (reward,) = tasks.train.grade(int(got.prompt_B[row]), [response], [bool(got.stopped_B[row])])
        assert reward in (0.0, 1.0)


@pytest.mark.usefixtures("no_padding")
def test_smollm2_in_bf16_stays_near_the_trainer(smollm2: Path, chat: tuple[Decoder, Any, tuple[int, ...]]) -> None:
    _, tasks, stops = chat
    decoder = load_decoder(smollm2, dtype=torch.bfloat16).eval()
    prompts = tasks.train.prompts[:2]
    engine = CapturedEngine(decoder, SamplingSettings(12, stop_tokens=stops), rows=8, prompt_tokens=80)
    rollouts = sample(engine, requests(prompts, seed=5, per_prompt=4))
    with torch.no_grad():
        logprobs_BT, _ = score(decoder, rollouts, make_recipe({}))
    gap = (logprobs_BT - rollouts.logprobs_BT).abs().sum() / rollouts.mask_BT.sum()
    assert float(gap) < 0.02
