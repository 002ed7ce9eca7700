"""The kernels of the fast path, run by Triton's interpreter on the CPU, against the plain path."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isocompute.core.recipe import make_recipe
from isocompute.problems.chain import distinct_chains, parse_chain, vocabulary
from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder
from isocompute.rl.evaluation import EvaluationSpec
from isocompute.rl.fast import step
from isocompute.rl.fast.adam import FlatAdamW
from isocompute.rl.fast.exact import exact_linear
from isocompute.rl.fast.generate import Generator, fits_kernels
from isocompute.rl.fast.lane import Lane
from isocompute.rl.fast.step import SUMMED, Step
from isocompute.rl.fast.tiles import tiles_for
from isocompute.rl.fast.training import FastTraining, can_be_fast
from isocompute.rl.fast.weights import join_weights
from isocompute.rl.model import Model
from isocompute.rl.optimizer import Optimizer
from isocompute.rl.sampler import Rollouts, SamplingSettings, left_padded, sample
from isocompute.rl.scoring import micro_batches, score
from isocompute.rl.tasks import Task, Tasks
from isocompute.rl.training import LmTraining, Sizes
from isocompute.rl.update import DivergedError
from isocompute.rl.verifiers import ChainVerifier
from isocompute.sweep.base import Cell

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton runs on Linux alone")
WORDS = vocabulary(5)


def tiny(**changes: Any) -> Decoder:
    values: dict[str, Any] = {
        "model_type": "qwen3",
        "vocab_size": len(WORDS),
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(1)
    decoder = Decoder(DecoderConfig(**{**values, **changes}))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.3)
    return decoder.eval()


PROMPTS = [[6, 3, 7, 2], [9, 4, 8, 5, 6, 2], [7, 2]]


def generated(
    decoder: Decoder,
    *,
    stops: tuple[int, ...],
    per_prompt: int = 3,
    new: int = 5,
    overlap: bool = False,
    library: bool = False,
) -> Rollouts:
    width = max(map(len, PROMPTS))
    generator = Generator(
        decoder,
        problems=len(PROMPTS),
        per_prompt=per_prompt,
        prompt_slots=width,
        new_slots=new,
        stop_tokens=stops,
        temperature=0.8,
    )
    generator.prompts_PT.copy_(left_padded(PROMPTS, 0))
    generator.padding_P.copy_(torch.tensor([width - len(prompt) for prompt in PROMPTS]))
    generator.seed.fill_(5)
    generator.first_row.fill_(1000)
    lane = generator.decoding
    assert isinstance(lane, Lane)
    lane.overlap = {"OVERLAP": overlap}
    lane.tiles = replace(lane.tiles, library=library)
    return generator.run()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "qwen2", "attention_bias": True, "num_key_value_heads": 1},
        {"model_type": "llama", "tie_word_embeddings": False, "num_key_value_heads": 4, "head_dim": 16},
        {"vocab_size": 5000, "hidden_size": 80},
    ],
    ids=["qwen3-gqa", "qwen2-bias", "llama-untied", "large-vocabulary"],
)
def test_kernels_sample_what_the_plain_sampler_samples(changes: dict[str, Any]) -> None:
    decoder, stops = tiny(**changes), (1, 4, 8, 9, *range(100, 5000, 3))
    settings = SamplingSettings(5, temperature=0.8, stop_tokens=stops)
    numbers = list(range(1000, 1009))
    plain = sample(decoder, PROMPTS, settings, seed=5, per_prompt=3, row_numbers=numbers)
    fast = generated(decoder, stops=stops)
    used = plain.mask_BT.shape[1]
    assert fast.mask_BT[:, :used].equal(plain.mask_BT)
    assert not fast.mask_BT[:, used:].any()
    assert (fast.responses_BT[:, :used] * plain.mask_BT).equal(plain.responses_BT * plain.mask_BT)
    torch.testing.assert_close(fast.logprobs_BT[:, :used], plain.logprobs_BT, atol=1e-5, rtol=0)
    assert fast.stopped_B.equal(plain.stopped_B)
    assert fast.lengths_B.unique().numel() > 1, "rows should stop at different times"
    with torch.no_grad():
        again, _ = score(decoder, fast, temperature=0.8, fixed=3)
    torch.testing.assert_close(again, fast.logprobs_BT, atol=1e-5, rtol=0)


def test_kernels_that_overlap_sample_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read before they wait for each other; the two instructions themselves are the GPU's."""
    for name in ("gdc_launch_dependents", "gdc_wait"):
        monkeypatch.setattr(f"isocompute.rl.fast.kernels.{name}", lambda: None)
    decoder, new = tiny(head_dim=16, num_attention_heads=2, num_key_value_heads=2), 20  # more than a block of slots
    one, other = (generated(decoder, stops=(1,), new=new, overlap=overlap) for overlap in (False, True))
    assert one.responses_BT.equal(other.responses_BT)
    torch.testing.assert_close(one.logprobs_BT, other.logprobs_BT, atol=1e-5, rtol=0)
    assert one.lengths_B.max() > 17


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"model_type": "qwen2", "attention_bias": True}, {"num_hidden_layers": 1, "intermediate_size": 33}],
    ids=["qwen3", "qwen2-bias", "one-layer"],
)
def test_a_librarys_products_sample_the_same(changes: dict[str, Any], kind: str) -> None:
    decoder = tiny(**changes).to(getattr(torch, kind))
    parts = generated(decoder, stops=(1,))
    library = generated(decoder, stops=(1,), library=True)
    assert library.responses_BT.equal(parts.responses_BT)
    torch.testing.assert_close(library.logprobs_BT, parts.logprobs_BT, atol=1e-5 if kind == "float32" else 2e-2, rtol=0)


def test_sampler_and_trainer_agree_in_bf16() -> None:
    """They round in the same places, prompts included; so does the plain trainer."""
    decoder = tiny().bfloat16()
    rollouts = generated(decoder, stops=())
    with torch.no_grad():
        again, _ = score(decoder, rollouts, temperature=0.8, fixed=3)
        plain, _ = score(decoder, rollouts, temperature=0.8)
        exact, _ = score(tiny(), rollouts, temperature=0.8)
    for other in (rollouts.logprobs_BT, plain):
        gap = (again - other).abs().mean()
        assert gap < 1e-3
        assert gap < (again - exact).abs().mean() / 4


def test_long_prompts_are_read_by_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny()
    short = generated(decoder, stops=(1,))
    monkeypatch.setattr("isocompute.rl.fast.prompts.fits_attention", lambda **_: False)
    long = generated(decoder, stops=(1,))
    assert long.responses_BT.equal(short.responses_BT)
    torch.testing.assert_close(long.logprobs_BT, short.logprobs_BT, atol=1e-5, rtol=0)


def test_the_head_on_tensor_cores_is_an_fp32_head() -> None:
    torch.manual_seed(0)
    x_BTD, weight_VD = torch.randn(3, 4, 16).bfloat16(), torch.randn(11, 16).bfloat16()
    grad_BTV = torch.randn(3, 4, 11)
    both = []
    for head, dtype in ((exact_linear, torch.bfloat16), (torch.nn.functional.linear, torch.float64)):
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (x_BTD, weight_VD)]
        out_BTV = head(*inputs)
        both.append([out_BTV, *torch.autograd.grad(out_BTV, inputs, grad_BTV.to(out_BTV.dtype))])
    (out, *grads), (want, *want_grads) = both
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-6)
    for got, true in zip(grads, want_grads, strict=True):
        assert got.eq(true.bfloat16()).double().mean() > 0.95, "only the result is rounded"


def test_fixed_and_packed_scores_agree() -> None:
    decoder = tiny()
    rollouts = sample(decoder, PROMPTS, SamplingSettings(6, stop_tokens=(1, 8)), seed=2, per_prompt=4)
    for name, packed, fixed in zip(
        ("log-probs", "entropies"), score(decoder, rollouts), score(decoder, rollouts, fixed=4), strict=True
    ):
        torch.testing.assert_close(packed, fixed, atol=1e-5, rtol=0, msg=name)


def test_joined_weights_stay_the_parameters() -> None:
    decoder = tiny()
    before = decoder(torch.tensor([PROMPTS[1]]))
    joined = join_weights(decoder)
    assert decoder(torch.tensor([PROMPTS[1]])).equal(before)
    with torch.no_grad():
        decoder.layers[1].self_attn.k_proj.weight.fill_(7.0)  # type: ignore[union-attr, operator]  # a Block
    heads, groups, size = 4, 2, 12
    assert (joined[1].qkv[heads * size : (heads + groups) * size] == 7.0).all()


def cell_of(**recipe: Any) -> Cell:
    return Cell(
        name="c",
        problems_per_batch=2,
        rollouts_per_problem=4,
        update_steps=2,
        seed=3,
        recipe={"name": "isocompute-easy", "learning_rate": 1e-2, "temperature": 1.0, **recipe},
    )


def training(kind: type[LmTraining], cell: Cell, folder: Path, *, dtype: torch.dtype = torch.float32) -> LmTraining:
    chains = distinct_chains(parse_chain("chain:1-2?modulus=5"), 8, seed=0)
    ids = {word: i for i, word in enumerate(WORDS)}
    prompts = [[ids[word] for word in chains.question(i).split()] for i in range(8)]
    verify = ChainVerifier(chains.answers_P + ids["0"], torch.device("cpu"))
    task = Task("train", [str(i) for i in range(8)], prompts, verify)
    tasks = Tasks(task, task, {}, 3, phrase="")
    model = Model(folder, tiny(num_hidden_layers=1).to(dtype), (1,))
    recipe = make_recipe(cell.recipe)
    assert can_be_fast(cell, model.decoder.config, tasks, recipe)
    evaluation = EvaluationSpec(points=2, samples=2, k=[2])
    return kind(cell, model, tasks, recipe, evaluation, Sizes(micro_batch=16, sample_batch=12))


def test_fast_training_is_the_plain_training(tmp_path: Path) -> None:
    cell = cell_of()
    plain, fast = training(LmTraining, cell, tmp_path), training(FastTraining, cell, tmp_path)
    points = []
    for run in (plain, fast):
        first = run.evaluate()
        run.update()
        run.update()
        points.append((first, run.evaluate()))
    for before, after in zip(plain.decoder.parameters(), fast.decoder.parameters(), strict=True):
        torch.testing.assert_close(before, after, atol=2e-5, rtol=1e-4)
    for plain_point, fast_point in zip(*points, strict=True):
        assert plain_point.keys() == fast_point.keys()
        for name in plain_point.keys() - {"seconds"}:
            assert fast_point[name] == pytest.approx(plain_point[name], rel=1e-3, abs=1e-5), name


def test_micro_batches_of_fixed_shape(tmp_path: Path) -> None:
    whole, cut = (training(FastTraining, cell_of(), tmp_path) for _ in "ab")
    assert isinstance(cut, FastTraining)
    cut.step_of_own.micro_batch = 3
    for run in (whole, cut):
        run.update()
    for one, other in zip(whole.decoder.parameters(), cut.decoder.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_a_micro_batch_that_does_not_fit_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tried = training(FastTraining, cell_of(), tmp_path), []
    assert isinstance(run, FastTraining)

    def body(step: Step) -> None:
        tried.append(step.micro_batch)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(Step, "body", body)
    with pytest.warns(UserWarning, match="rollouts at once do not fit memory"):
        run.update()
    assert tried == [16, 4, 2]  # of a batch of 8
    assert run.sizes.micro_batch == 2


@pytest.mark.parametrize(("evaluated", "before"), [(0, 0), (0, 64), (700, 960)])
def test_uniform_noise_is_noticed_at_every_look_whenever_the_last_point_was(
    evaluated: int, before: int, tmp_path: Path
) -> None:
    run = training(FastTraining, cell_of(), tmp_path)
    assert isinstance(run, FastTraining)
    run.step, run.last_evaluated = before, evaluated
    noise, entropy = math.log(len(WORDS)), SUMMED.index("entropy")
    run.part.sums[entropy] = 64 * 0.9 * noise
    for _ in range(64):
        run.end_update()
    run.part.sums[entropy] = 64 * 0.999 * noise
    for _ in range(63):
        run.end_update()
    with pytest.raises(DivergedError, match=f"uniform noise \\(entropy {0.999 * noise:.2f}\\)"):
        run.end_update()
    assert run.step == before + 128


def test_a_look_between_two_others_is_at_the_updates_since_the_last(tmp_path: Path) -> None:
    run = training(FastTraining, cell_of(), tmp_path)
    assert isinstance(run, FastTraining)
    noise, entropy = math.log(len(WORDS)), SUMMED.index("entropy")
    for updates in (3, 5):
        run.part.sums[entropy] = updates * 0.9 * noise
        for _ in range(updates):
            run.end_update()
        run.settle()
        run.settle()  # nothing is new: nothing to judge
    other = training(FastTraining, cell_of(), tmp_path)
    assert isinstance(other, FastTraining)
    other.restore(*run.state())
    other.part.sums[entropy] = 2 * 0.999 * noise
    for _ in range(2):
        other.end_update()
    with pytest.raises(DivergedError, match="uniform noise"):
        other.settle()


def test_micro_batches_are_of_one_shape_where_that_is_cheap() -> None:
    decoder = tiny()
    rollouts = sample(decoder, PROMPTS * 4, SamplingSettings(2), seed=2, per_prompt=2)  # 12 problems, 24 rows
    for size, want in ((24, [None]), (23, [12, 12]), (11, [8, 8, 8]), (7, [6] * 4), (10, [8] * 3), (1, [1] * 24)):
        got = [None if rows is None else len(rows) for rows in micro_batches(rollouts, size, fixed=2)]
        assert got == want, size


def test_warming_up_leaves_no_trace(tmp_path: Path) -> None:
    first, second = (training(FastTraining, cell_of(), tmp_path) for _ in "ab")
    assert isinstance(second, FastTraining)
    second.step_of_own.prepare(0, torch.arange(2).numpy(), rate=1e-2, first_row=0, seed=3)
    second.step_of_own.warm_up()
    for run in (first, second):
        run.update()
    for one, other in zip(first.decoder.parameters(), second.decoder.parameters(), strict=True):
        assert one.equal(other)


def test_warming_up_after_a_checkpoint_of_nothing_leaves_no_trace(tmp_path: Path) -> None:
    """A run that stopped before its first update has a state without moments."""
    first, second = (training(FastTraining, cell_of(), tmp_path) for _ in "ab")
    assert isinstance(second, FastTraining)
    second.restore(*first.state())
    second.step_of_own.prepare(0, torch.arange(2).numpy(), rate=1e-2, first_row=0, seed=3)
    second.step_of_own.warm_up()
    moments = [value for state in second.optimizer.inner.state.values() for value in state.values()]
    assert moments
    assert not any(bool(value.any()) for value in moments)


def test_a_step_with_the_optimizer_of_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: warming up leaves no trace, an update is that of PyTorch's optimiser, and so is a checkpoint."""
    runs = []
    for flat in (True, False):
        monkeypatch.setattr(
            "isocompute.rl.training.Optimizer",
            lambda *inputs, chosen=flat, **_: Optimizer(*inputs, flat=chosen),
        )
        run = training(FastTraining, cell_of(), tmp_path, dtype=torch.bfloat16)
        assert isinstance(run, FastTraining)
        assert isinstance(run.optimizer.inner, FlatAdamW) == flat
        before = run.optimizer.state("")
        run.step_of_own.prepare(0, torch.arange(2).numpy(), rate=1e-2, first_row=0, seed=3)
        run.step_of_own.warm_up()
        assert all((run.optimizer.state("")[name] == value).all() for name, value in before.items())
        run.update()
        runs.append(run)
    first, second = (run.optimizer.state("") for run in runs)
    assert first.keys() == second.keys()
    assert all(first[name] == pytest.approx(second[name], rel=1e-5, abs=1e-7) for name in first)
    runs[0].restore(*runs[1].state())
    assert all((runs[0].optimizer.state("")[name] == value).all() for name, value in second.items())
    for one, other in zip(runs[0].decoder.parameters(), runs[1].decoder.parameters(), strict=True):
        assert one.equal(other)


def test_blocks_are_compiled_when_one_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences never call one: nothing is compiled for them, nor loaded that compiles."""
    decoder, tokens_BT, made = tiny(), torch.arange(12).view(2, 6) % 5, []
    monkeypatch.setattr(torch, "compile", lambda function, **options: made.append(options) or function)
    step._compile_block.cache_clear()
    plain = decoder.residual(tokens_BT)
    step.compile_decoder(decoder)
    assert not made
    assert torch.equal(decoder.residual(tokens_BT), plain)
    decoder.residual(tokens_BT)
    assert len(made) == 1
    step._compile_block.cache_clear()


def test_what_the_kernels_do_not_know() -> None:
    config = tiny().config
    assert not fits_kernels(config, top_p=0.9, temperature=1.0)
    assert not fits_kernels(config, top_p=1.0, temperature=0.0)
    assert fits_kernels(config, top_p=1.0, temperature=1.0)
    large = DecoderConfig(**{**config.__dict__, "vocab_size": 150_000})
    assert fits_kernels(large, top_p=1.0, temperature=1.0)
    assert tiles_for(256, 192).rows < tiles_for(1024, 192).rows
    assert tiles_for(8192, 192).library and tiles_for(256, 384).library
