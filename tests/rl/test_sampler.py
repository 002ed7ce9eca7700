"""Sampling with the reference engine: distribution, log-probs, slots, stopping, reproducibility."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from isocompute.core.errors import InputError
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import Rollouts, SamplingSettings, sample, streams, uniform_at
from tests.rl.models import CONFIGS, eager, logits_of, requests

PROMPTS = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50], [3, 3]]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    out = Decoder(DecoderConfig.from_json(CONFIGS["qwen3"].to_dict())).eval()
    with torch.no_grad():
        for parameter in out.parameters():
            parameter.normal_(std=0.25)
    return out


def tokens(out: Rollouts, row: int) -> list[int]:
    return out.responses_BT[row][out.mask_BT[row]].tolist()


def recomputed(
    decoder: Decoder, prompt: list[int], response: list[int], *, temperature: float, top_p: float
) -> torch.Tensor:
    """Log-probs of a response from one plain pass without a cache, with temperature and top-p written out."""
    logits = logits_of(decoder, torch.tensor([prompt + response]))[0, len(prompt) - 1 : -1] / temperature
    probabilities = logits.softmax(-1)
    ordered, order = probabilities.sort(-1, descending=True)
    keep = (ordered.cumsum(-1) - ordered) < top_p
    kept = torch.zeros_like(probabilities).scatter(-1, order, ordered * keep)
    kept = kept / kept.sum(-1, keepdim=True)
    return kept.gather(-1, torch.tensor(response)[:, None])[:, 0].log()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.8)])
def test_logprobs_are_of_the_distribution_that_was_sampled(decoder: Decoder, temperature: float, top_p: float) -> None:
    out = eager(decoder, requests(PROMPTS, seed=1, temperature=temperature), SamplingSettings(20, top_p=top_p))
    for row, prompt in enumerate(PROMPTS):
        response = out.responses_BT[row].tolist()
        expected = recomputed(decoder, prompt, response, temperature=temperature, top_p=top_p)
        torch.testing.assert_close(out.logprobs_BT[row], expected, atol=2e-4, rtol=0)


def test_greedy_and_sampled_groups_share_an_engine(decoder: Decoder) -> None:
    """Temperatures belong to groups."""
    settings = SamplingSettings(16)
    cold, warm = (requests(PROMPTS, seed=5, temperature=t) for t in (0.0, 0.8))
    mixed = eager(decoder, [cold[0], warm[1], cold[2], warm[3]], settings)
    alone = [eager(decoder, groups, settings) for groups in (cold, warm)]
    for row in range(4):
        assert tokens(mixed, row) == tokens(alone[row % 2], row)
        torch.testing.assert_close(mixed.logprobs_BT[row], alone[row % 2].logprobs_BT[row], atol=1e-5, rtol=0)


def test_rows_do_not_depend_on_the_batch(decoder: Decoder) -> None:
    settings = SamplingSettings(24, stop_tokens=(11, 12, 13))
    groups = requests(PROMPTS, seed=5, temperature=0.8)
    together = eager(decoder, groups, settings)
    for row, group in enumerate(groups):
        assert tokens(eager(decoder, [group], settings), 0) == tokens(together, row)
    backwards = eager(decoder, groups[::-1], settings)
    assert [tokens(backwards, 3 - row) for row in range(4)] == [tokens(together, row) for row in range(4)]
    other = eager(decoder, requests(PROMPTS, seed=6, temperature=0.8), settings)
    assert [tokens(other, row) for row in range(4)] != [tokens(together, row) for row in range(4)]


@pytest.mark.parametrize(("rows", "at_once"), [(5, None), (8, 3), (3, 1), (1, None)])
def test_rows_do_not_depend_on_the_slots(decoder: Decoder, rows: int, at_once: int | None) -> None:
    """Twenty rows, in groups of five, enter and leave at any time; a group may have more rows than the engine."""
    settings, groups = SamplingSettings(24, stop_tokens=tuple(range(60, 70))), requests(PROMPTS, seed=5, per_prompt=5)
    together = eager(decoder, groups, settings)
    assert len(set(together.lengths_B.tolist())) > 4
    engine = EagerEngine(decoder, settings, rows=rows, prompt_tokens=7, at_once=at_once)
    slotted = sample(engine, groups)
    assert torch.equal(slotted.responses_BT, together.responses_BT)
    assert torch.equal(slotted.stopped_B, together.stopped_B)
    torch.testing.assert_close(slotted.logprobs_BT, together.logprobs_BT, atol=1e-5, rtol=1e-4)
    assert engine.busy == 0


def test_a_prompt_of_300_tokens_changes_nothing_beside_it() -> None:
    """One precision for all: neither the padding nor the neighbours of a row decide how it is computed."""
    torch.manual_seed(1)
    config = DecoderConfig.from_json({**CONFIGS["qwen3"].to_dict(), "max_position_embeddings": 512})
    decoder = Decoder(config).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.25)
    settings, groups = SamplingSettings(40), requests([*PROMPTS, [i % 97 for i in range(300)]], seed=2, per_prompt=4)
    beside, alone = eager(decoder, groups, settings), eager(decoder, groups[:4], settings)
    assert torch.equal(beside.responses_BT[:16], alone.responses_BT)
    torch.testing.assert_close(beside.logprobs_BT[:16], alone.logprobs_BT, atol=1e-5, rtol=0)


def test_stopping(decoder: Decoder) -> None:
    stops = tuple(range(0, 97, 5))
    out = eager(decoder, requests(PROMPTS, seed=2, per_prompt=8), SamplingSettings(30, stop_tokens=stops))
    for row in range(32):
        response = tokens(out, row)
        assert not set(response[:-1]) & set(stops)
        assert bool(out.stopped_B[row]) == (response[-1] in stops)
        assert bool(out.stopped_B[row]) or len(response) == 30
    assert int(out.lengths_B.max()) == out.responses_BT.shape[1]
    assert (out.logprobs_BT[~out.mask_BT] == 0).all() and (out.responses_BT[~out.mask_BT] == 0).all()


def test_stop_strings(decoder: Decoder) -> None:
    """A response ends with the token that completes the text, wherever in it the text lies."""

    def text(ids: object) -> str:
        assert isinstance(ids, list)
        return "".join(f"<{i:02}>" for i in ids)

    plain = eager(decoder, requests(PROMPTS, seed=2, per_prompt=8), SamplingSettings(30))
    settings = SamplingSettings(30, stop_strings=("7><", "99"), text=text)
    out = eager(decoder, requests(PROMPTS, seed=2, per_prompt=8), settings)
    for row in range(32):
        whole = tokens(plain, row)
        ends = [i + 2 for i, token in enumerate(whole[:-1]) if token % 10 == 7]
        length = min([*ends, 30])
        assert tokens(out, row) == whole[:length]
        assert bool(out.stopped_B[row]) == bool(ends)
    assert len(set(out.lengths_B.tolist())) > 4


@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (1.0, 0.6)])
def test_tokens_follow_their_probabilities(decoder: Decoder, temperature: float, top_p: float) -> None:
    rows = 6000
    groups = requests([[5, 9, 2]], seed=3, per_prompt=rows, temperature=temperature)
    out = eager(decoder, groups, SamplingSettings(1, top_p=top_p))
    counts = np.bincount(out.responses_BT[:, 0].numpy(), minlength=97)
    probability = np.zeros(97)
    for token in np.flatnonzero(counts):
        row = int((out.responses_BT[:, 0] == int(token)).nonzero()[0, 0])
        probability[token] = float(out.logprobs_BT[row, 0].exp())
    often = probability * rows >= 5
    assert probability[often].sum() > 0.5
    rest = 1.0 - probability[often].sum()
    observed = [*counts[often], counts[~often].sum()]
    expected = [*(probability[often] * rows), rest * rows]
    if expected[-1] < 5:
        observed, expected = observed[:-1], np.array(expected[:-1]) * sum(observed[:-1]) / sum(expected[:-1])
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-3


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    rows = torch.from_numpy(streams(7, np.arange(4000)))
    first, second = (uniform_at(rows, torch.tensor(position)).numpy() for position in (0, 1))
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05
    assert first.min() > 0
    assert first.max() < 1
    other = uniform_at(torch.from_numpy(streams(8, np.arange(4000))), torch.tensor(0)).numpy()
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


def test_bad_requests(decoder: Decoder) -> None:
    with pytest.raises(InputError, match="do not fit the model's context of 256"):
        eager(decoder, requests([[1] * 250], seed=0), SamplingSettings(10))
    with pytest.raises(InputError, match="empty"):
        eager(decoder, requests([[]], seed=0), SamplingSettings(10))
    with pytest.raises(InputError, match="max_new_tokens: 0 leaves no room"):
        eager(decoder, requests([[5]], seed=0), SamplingSettings(0))
