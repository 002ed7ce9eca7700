"""Sampling: distribution, log-probs, draining, reproducibility."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from isocompute.core.errors import InputError
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.eager import SamplingSettings, sample, uniforms
from isocompute.rl.rollout.rollouts import Rollouts
from tests.rl.models import CONFIGS

PROMPTS = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50], [3, 3]]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    out = Decoder(DecoderConfig.from_json(CONFIGS["qwen3"].to_dict())).eval()
    with torch.no_grad():
        for parameter in out.parameters():
            parameter.normal_(std=0.25)
    return out


def recomputed(decoder: Decoder, prompt: list[int], response: list[int], settings: SamplingSettings) -> torch.Tensor:
    """Log-probs of a response from one plain pass without a cache, with temperature and top-p written out."""
    tokens = torch.tensor([prompt + response])
    with torch.no_grad():
        logits = decoder.logits(decoder(tokens))[0, len(prompt) - 1 : -1] / settings.temperature
    probabilities = logits.softmax(-1)
    ordered, order = probabilities.sort(-1, descending=True)
    keep = (ordered.cumsum(-1) - ordered) < settings.top_p
    kept = torch.zeros_like(probabilities).scatter(-1, order, ordered * keep)
    kept = kept / kept.sum(-1, keepdim=True)
    return kept.gather(-1, torch.tensor(response)[:, None])[:, 0].log()


@pytest.mark.parametrize("settings", [SamplingSettings(20), SamplingSettings(20, temperature=0.6, top_p=0.8)])
def test_logprobs_are_of_the_distribution_that_was_sampled(decoder: Decoder, settings: SamplingSettings) -> None:
    out = sample(decoder, PROMPTS, settings, seed=1)
    for row, prompt in enumerate(PROMPTS):
        expected = recomputed(decoder, prompt, out.responses_BT[row].tolist(), settings)
        torch.testing.assert_close(out.logprobs_BT[row], expected, atol=2e-4, rtol=0)


def test_rows_do_not_depend_on_the_batch(decoder: Decoder) -> None:
    settings = SamplingSettings(24, temperature=0.8, stop_tokens=(11, 12, 13))
    together = sample(decoder, PROMPTS, settings, seed=5)
    for row, prompt in enumerate(PROMPTS):
        alone = sample(decoder, [prompt], settings, seed=5, row_numbers=[row])
        assert tokens(alone, 0) == tokens(together, row)
    backwards = sample(decoder, PROMPTS[::-1], settings, seed=5, row_numbers=[3, 2, 1, 0])
    assert [tokens(backwards, 3 - row) for row in range(4)] == [tokens(together, row) for row in range(4)]
    other = sample(decoder, PROMPTS, settings, seed=6)
    assert [tokens(other, row) for row in range(4)] != [tokens(together, row) for row in range(4)]


def tokens(out: Rollouts, row: int) -> list[int]:
    return out.responses_BT[row][out.mask_BT[row]].tolist()


def test_stopping(decoder: Decoder) -> None:
    stops = tuple(range(0, 97, 5))
    out = sample(decoder, PROMPTS * 8, SamplingSettings(30, stop_tokens=stops), seed=2)
    for row in range(32):
        response = tokens(out, row)
        assert not set(response[:-1]) & set(stops)
        assert bool(out.stopped_B[row]) == (response[-1] in stops)
        assert bool(out.stopped_B[row]) or len(response) == 30
    assert int(out.lengths_B.max()) == out.responses_BT.shape[1]
    assert (out.logprobs_BT[~out.mask_BT] == 0).all()


@pytest.mark.parametrize("settings", [SamplingSettings(1, temperature=0.7), SamplingSettings(1, top_p=0.6)])
def test_tokens_follow_their_probabilities(decoder: Decoder, settings: SamplingSettings) -> None:
    rows = 6000
    out = sample(decoder, [[5, 9, 2]] * rows, settings, seed=3)
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
    rows = torch.arange(4000)
    first, second = uniforms(7, rows, range(2)).numpy()
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05
    assert first.min() > 0
    assert first.max() < 1


def test_bad_requests(decoder: Decoder) -> None:
    with pytest.raises(InputError, match="do not fit the model's context of 256"):
        sample(decoder, [[1] * 250], SamplingSettings(10), seed=0)
    with pytest.raises(InputError, match="empty"):
        sample(decoder, [[]], SamplingSettings(10), seed=0)
    with pytest.raises(InputError, match="no prompts"):
        sample(decoder, [], SamplingSettings(10), seed=0)
