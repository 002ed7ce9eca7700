"""Pass rates from counts: bins that show the distribution of problems, not the grid of samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isocompute import load
from isocompute.data.pass_rates import BINS, PassRates, read_pass_rates
from tests.conftest import rising, write_points


def rates_of(folder: Path, correct: list[int], samples: int | list[int]) -> PassRates:
    write_points(folder, rising(4))
    row = {"step": 1, "set": "train", "samples": samples, "correct": correct}
    (folder / "pass_rates.jsonl").write_text(json.dumps(row) + "\n")
    (run,) = load(folder)
    (found,) = read_pass_rates(run, [str(folder)])
    return found


@pytest.mark.parametrize(
    ("samples", "bins"),
    [(1, 2), (4, 5), (10, 11), (16, 17), (20, 21), (23, 12), (32, 11), (46, 20), (64, 13), (100, 20), (128, 20)],
)
def test_problems_of_every_rate_leave_no_gap(tmp_path: Path, samples: int, bins: int) -> None:
    found = rates_of(tmp_path, list(range(samples + 1)), samples)
    assert found.bins == bins
    count_K = found.shares(bins) * (samples + 1)
    assert count_K.min() > 0.5
    assert count_K.max() - count_K.min() < (0.5 if (samples + 1) % bins == 0 else 1.5)
    assert len(found.share_K) == BINS


def test_problems_sampled_unequally_often_have_the_bins_of_the_fewest(tmp_path: Path) -> None:
    found = rates_of(tmp_path, [1, 8, 32], [4, 16, 32])
    assert (found.bins, found.samples) == (5, 0)
    assert found.shares(5).tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3])
