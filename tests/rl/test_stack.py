"""Cells stacked into one batched model against the same cells alone; kernels by Triton's interpreter on the CPU."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isocompute.rl.decoder import Decoder
from isocompute.rl.fast import stacked_update
from isocompute.rl.fast.exact import exact_linear
from isocompute.rl.fast.generate import Generator
from isocompute.rl.fast.lane import Lane
from isocompute.rl.fast.products import embedded, normed, product
from isocompute.rl.fast.stack import StackedTrainings, stacks_with
from isocompute.rl.fast.stacked import Stack
from isocompute.rl.fast.training import FastTraining
from isocompute.rl.sampler import Rollouts, left_padded
from isocompute.rl.scoring import score
from isocompute.sweep.base import Cell
from tests.rl.test_fast import PROMPTS, cell_of, tiny, training

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
pytest.importorskip("triton.runtime.interpreter", reason="Triton runs on Linux alone")

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2-bias": {"model_type": "qwen2", "attention_bias": True, "num_key_value_heads": 1},
    "llama-untied": {"model_type": "llama", "tie_word_embeddings": False},
    "large-vocabulary": {"vocab_size": 1500},
}


def others(decoder: Decoder, count: int) -> list[Decoder]:
    """Decoders of one shape with weights of their own."""
    out = [copy.deepcopy(decoder) for _ in range(count)]
    torch.manual_seed(7)
    with torch.no_grad():
        for one in out:
            for parameter in one.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return out


def sampled(decoder: Decoder, seeds: list[int]) -> Rollouts:
    width = max(map(len, PROMPTS))
    generator = Generator(
        decoder,
        problems=len(PROMPTS),
        per_prompt=2,
        prompt_slots=width,
        new_slots=4,
        stop_tokens=(1, 4, *range(100, 1500, 5)),
        temperature=0.8,
    )
    lane = generator.decoding
    assert isinstance(lane, Lane)
    lane.tiles = replace(lane.tiles, library=True)
    generator.prompts_PT.copy_(left_padded(PROMPTS, 0).repeat(len(seeds), 1))
    generator.padding_P.copy_(torch.tensor([width - len(prompt) for prompt in PROMPTS] * len(seeds)))
    generator.seed.copy_(torch.tensor(seeds))
    generator.first_row.copy_(torch.tensor([100 * seed for seed in seeds]))
    return generator.run()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stack_samples_and_scores_what_its_cells_do(family: str) -> None:
    decoders, seeds = others(tiny(num_hidden_layers=1, **FAMILIES[family]), 2), [5, 9]
    alone = [sampled(decoder, [seed]) for decoder, seed in zip(decoders, seeds, strict=True)]
    with torch.no_grad():
        scores = [score(decoder, own, temperature=0.8, fixed=2) for decoder, own in zip(decoders, alone, strict=True)]
    stack = Stack(decoders)
    together = sampled(stack, seeds)
    assert together.responses_BT.equal(torch.cat([own.responses_BT for own in alone]))
    assert together.mask_BT.equal(torch.cat([own.mask_BT for own in alone]))
    want = torch.cat([own.logprobs_BT for own in alone])
    torch.testing.assert_close(together.logprobs_BT, want, atol=1e-5, rtol=0)
    with torch.no_grad():
        got = score(stack, together, temperature=0.8, fixed=2)
    for name, mine, parts in zip(("log-probs", "entropies"), got, zip(*scores, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.cat(parts), atol=1e-5, rtol=0, msg=name)


def test_cells_keep_their_parameters() -> None:
    """The decoders' parameters are views of the stack: what one changes, the other sees."""
    decoders = others(tiny(), 2)
    before = [decoder(torch.tensor([PROMPTS[1]])) for decoder in decoders]
    stack = Stack(decoders)
    for decoder, hidden in zip(decoders, before, strict=True):
        assert decoder(torch.tensor([PROMPTS[1]])).equal(hidden)
    assert stack.lm_head.weight is stack.embed_tokens.weight, "a tied head stays tied"
    with torch.no_grad():
        decoders[1].layers[0].self_attn.k_proj.weight.fill_(7.0)  # type: ignore[union-attr, operator]  # a Block
    heads, groups, size = 4, 2, 12
    keys = slice(heads * size, (heads + groups) * size)
    assert (stack.weights_of(1)[0].qkv[keys] == 7.0).all()
    assert not (stack.weights_of(0)[0].qkv[keys] == 7.0).any()


def test_products_norms_and_embeddings_of_a_stack() -> None:
    decoders = others(tiny(), 2)
    torch.manual_seed(0)
    x_ND, tokens_N = torch.randn(6, 24), torch.arange(6)
    halves = (x_ND[:3], x_ND[3:])
    want = {
        "norm": [d.norm(x) for d, x in zip(decoders, halves, strict=True)],
        "product": [d.layers[0].mlp.up_proj(x) for d, x in zip(decoders, halves, strict=True)],  # type: ignore[union-attr, operator]  # a Block
        "head": [
            exact_linear(x.bfloat16(), d.lm_head.weight.bfloat16()) for d, x in zip(decoders, halves, strict=True)
        ],
        "embedding": [d.embed_tokens(t) for d, t in zip(decoders, tokens_N.split(3), strict=True)],
    }
    stack = Stack(decoders)
    got = {
        "norm": normed(x_ND, stack.norm),
        "product": product(x_ND, stack.layers[0].mlp.up_proj.weight),  # type: ignore[union-attr, arg-type]  # a Block
        "head": exact_linear(x_ND.bfloat16(), stack.lm_head.weight.bfloat16()),
        "embedding": embedded(stack, tokens_N),
    }
    for name, parts in want.items():
        torch.testing.assert_close(got[name], torch.cat(parts), atol=1e-6, rtol=1e-5, msg=name)


def a_cell(seed: int, **recipe: Any) -> Cell:
    return replace(cell_of(**recipe), seed=seed)


CELLS = [
    a_cell(3),
    a_cell(4, learning_rate=3e-3, advantage="group_mean"),
    a_cell(3, loss="reinforce", aggregation="prompt", entropy_coef=0.01, grad_clip=0.1, optimizer="sgd"),
]


def update(stack: StackedTrainings, going: list[FastTraining]) -> None:
    for run in going:
        run.begin_update()
    stack.make_step()
    for run in going:
        run.end_update()


def test_stacked_cells_learn_what_they_learn_alone(tmp_path: Path) -> None:
    alone, together = ([training(FastTraining, cell, tmp_path) for cell in CELLS] for _ in "ab")
    members = [run for run in together if isinstance(run, FastTraining)]
    assert len({stacks_with(run)[1:] for run in members}) == 1  # type: ignore[index]  # but for the model, a copy each
    stack = StackedTrainings(members)
    for run in alone:
        run.update()
    update(stack, members)
    pairs = list(zip(alone, members, strict=True))
    points = [(alone[0].evaluate(), members[0].evaluate())]
    stack.leave(members[0])  # the others go on
    update(stack, members[1:])
    for run in alone[1:]:
        run.update()
    points.append((alone[1].evaluate(), members[1].evaluate()))
    for one, other in pairs:
        for before, after in zip(one.decoder.parameters(), other.decoder.parameters(), strict=True):
            torch.testing.assert_close(before, after, atol=2e-5, rtol=1e-4)
    for want, got in points:
        assert want.keys() == got.keys()
        for name in want.keys() - {"seconds"}:
            assert got[name] == pytest.approx(want[name], rel=1e-3, abs=1e-5), name


def test_a_stack_that_fails_while_it_is_built_leaves_its_cells_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parameters have moved by then; what samples has to know where to."""
    members = [
        run for run in (training(FastTraining, cell, tmp_path) for cell in CELLS) if isinstance(run, FastTraining)
    ]
    for run in members:
        run.update()

    def failing(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr("isocompute.rl.fast.stack.Step", failing)
    with pytest.raises(torch.OutOfMemoryError):
        StackedTrainings(members)
    for run in members:
        run.stand_alone()
        run.update()
        attention = run.decoder.layers[0].self_attn  # type: ignore[union-attr]  # a Block
        assert run.weights[0].qkv[: len(attention.q_proj.weight)].equal(attention.q_proj.weight)  # type: ignore[union-attr, arg-type, index]  # as above


def test_several_updates_a_batch(tmp_path: Path) -> None:
    cells = [a_cell(seed, updates_per_batch=2, loss="clip") for seed in (3, 8)]
    alone, together = ([training(FastTraining, cell, tmp_path) for cell in cells] for _ in "ab")
    members = [run for run in together if isinstance(run, FastTraining)]
    update(StackedTrainings(members), members)
    for one, other in zip(alone, members, strict=True):
        one.update()
        for before, after in zip(one.decoder.parameters(), other.decoder.parameters(), strict=True):
            torch.testing.assert_close(before, after, atol=2e-5, rtol=1e-4)


def test_what_does_not_stack(tmp_path: Path) -> None:
    def key(cell: Cell, **sizes: int) -> Any:
        run = training(FastTraining, cell, tmp_path)
        assert isinstance(run, FastTraining)
        run.sizes = replace(run.sizes, **sizes)
        return stacks_with(run)

    first = key(cell_of())
    assert key(replace(cell_of(), rollouts_per_problem=2))[1:] != first[1:]
    assert key(cell_of(kl_coef=0.0))[1:] != first[1:]
    assert key(cell_of(temperature=0.9))[1:] != first[1:]
    assert key(cell_of(learning_rate=1e-3))[1:] == first[1:]
    assert key(cell_of(), micro_batch=4) is None, "a batch trained on in parts fills the device by itself"


def test_gradients_of_a_stack_stay_until_every_cell_has_read_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells read them on several streams; freed by the last to begin, they would be memory for what it does next."""
    shared: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    hand_out, stepped = Stack.hand_out_gradients, stacked_update._stepped

    def watched(stack: Stack) -> list[torch.Tensor]:
        out = hand_out(stack)
        shared.extend(weakref.ref(grad) for grad in out)
        return out

    def stepping(optimizer: Any) -> torch.Tensor:
        out = stepped(optimizer)
        alive.extend(grad() is not None for grad in shared)
        return out

    monkeypatch.setattr(Stack, "hand_out_gradients", watched)
    monkeypatch.setattr(stacked_update, "_stepped", stepping)
    trainings = [training(FastTraining, cell_of(), tmp_path) for _ in range(2)]
    stack = StackedTrainings([one for one in trainings if isinstance(one, FastTraining)])
    for place in range(2):
        stack.step.prepare(place, torch.arange(2).numpy(), rate=1e-2, first_row=0, seed=3)
    stack.make_step()
    assert len(alive) == 2 * len(shared) > 0
    assert all(alive)
    assert not any(grad() is not None for grad in shared)
