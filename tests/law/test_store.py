"""The law as a file: what is written is read again, files of version 1 too, and damaged ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import isocompute
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.law import Law, fit_law
from isocompute.law.store import is_law_file, read_law, write_law
from tests.law.made_up import hill, larger_wins, sweep

VERSION_1 = Path(__file__).parent / "data" / "law-version-1.json"
"""Written by isocompute 0.1: two seeds of n = 8 and of n = 64, 60 replicates of all three forms."""
ACROSS = np.geomspace(1e3, 1e8, 11)


@pytest.fixture(scope="module")
def law() -> Law:
    return fit_law([c for group in sweep(larger_wins, seeds=2) for c in group], metric="avg@4", replicates=60)


def rewritten(law: Law, path: Path, **changes: object) -> Path:
    write_law(law, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_law_is_read_as_it_was_written(law: Law, tmp_path: Path) -> None:
    write_law(law, tmp_path / "law.json")
    stored = read_law(tmp_path / "law.json")
    printed = json.loads(json.dumps(law.to_json()))
    assert {key: stored.summary[key] for key in printed} == printed
    assert len(stored.settings) == len(law.settings)
    for mine, theirs in zip(law.settings, stored.settings, strict=True):
        assert (mine.setting, mine.first, mine.last, mine.starts) == (
            theirs.setting,
            theirs.first,
            theirs.last,
            theirs.starts,
        )
        assert [c.name for c in mine.curves] == [c.name for c in theirs.curves]
        np.testing.assert_allclose(theirs.draws_at(ACROSS), mine.draws_at(ACROSS), rtol=1e-3)
        np.testing.assert_allclose(theirs.at(ACROSS), mine.at(ACROSS), rtol=1e-3)
        np.testing.assert_allclose(theirs.ceiling_interval(), mine.ceiling_interval(), rtol=1e-3)
    one, other = (fits[0].posterior.between(48, 24, ACROSS) for fits in (law.settings, stored.settings))
    np.testing.assert_allclose(other, one, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 100.0, 1e9])
def test_values_on_any_scale_are_read_as_they_were_written(scale: float, tmp_path: Path) -> None:
    compute_C = np.geomspace(1e4, 1e6, 20)
    curves = [Curve(f"{n}", compute_C, scale * hill(compute_C, -0.3, 0.6, 2e3 * n, 1.2), 32, n) for n in (8, 64)]
    law = fit_law(curves, metric="reward", replicates=20)
    write_law(law, tmp_path / "law.json")
    for mine, theirs in zip(law.settings, read_law(tmp_path / "law.json").settings, strict=True):
        np.testing.assert_allclose(theirs.draws_at(ACROSS), mine.draws_at(ACROSS), rtol=1e-3, atol=1e-4 * scale)


def test_a_stored_law_makes_the_plan_that_the_law_makes(law: Law, tmp_path: Path) -> None:
    write_law(law, tmp_path / "law.json")
    mine, theirs = (isocompute.plan(budget=2e6, law=each).chosen for each in (law, tmp_path / "law.json"))
    assert mine.allocation == theirs.allocation
    np.testing.assert_allclose(theirs.ranked.interval, mine.ranked.interval, rtol=1e-3)


# Version 1.


def test_a_file_of_version_1_has_the_curves_it_was_written_with() -> None:
    """Against each form's own formula, and against means that version 0.1 computed."""
    written = json.loads(VERSION_1.read_text())["settings"]
    means = {8: [0.330322, 0.467578, 0.564697], 64: [0.330923, 0.434758, 0.654823]}
    used = set()
    for entry, fit in zip(written, read_law(VERSION_1).settings, strict=True):
        compute_C = np.geomspace(entry["first"], entry["last"], 9)
        draws, x_C = entry["ensemble"], compute_C / entry["unit"]
        assert fit.setting == (entry["problems_per_batch"], entry["rollouts_per_problem"])
        for b, (family, (first, second, *_)) in enumerate(zip(draws["family"], draws["theta"], strict=True)):
            name = draws["families"][family]
            g_C = {
                "hill": 1.0 / (1.0 + (np.exp(first) / x_C) ** np.exp(second)),
                "exponential": 1.0 - np.exp(-x_C / np.exp(first)),
                "power": 1.0 - (1.0 + x_C) ** -np.exp(first),
            }[name]
            wanted_C = draws["base"][b] + (draws["ceiling"][b] - draws["base"][b]) * g_C
            np.testing.assert_allclose(fit.draws_at(compute_C)[:, b], wanted_C, atol=1e-3, err_msg=name)
            used.add(name)
        mean_C = fit.draws_at(np.array([2e4, 2e5, 2e6])).mean(axis=1)
        np.testing.assert_allclose(mean_C, means[fit.setting[1] or 0], atol=5e-4)
    assert used == {"hill", "exponential", "power"}


def test_a_file_of_version_1_can_be_planned_with() -> None:
    assert is_law_file(VERSION_1)
    plan = isocompute.plan(budget=2e6, law=VERSION_1)
    low, high = plan.chosen.ranked.interval
    assert plan.chosen.allocation.rollouts_per_problem == 64 and low <= 0.65 <= high


def test_one_seed_of_version_1_gets_the_seed_effect_that_was_assumed(tmp_path: Path) -> None:
    data = json.loads(VERSION_1.read_text())
    data["settings"][0]["runs"] = ["alone"]
    data["settings"][0]["recipes"] = [""]
    (tmp_path / "law.json").write_text(json.dumps(data))
    at = np.array([2e6])
    two, alone = (read_law(path).settings[0].draws_at(at).std() for path in (VERSION_1, tmp_path / "law.json"))
    assert alone > two


# Damaged files.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "isocompute-law", "version": 99}',
        '{"format": "isocompute-law", "version": 1, "settings": [{}]}',
        '{"format": "isocompute-law", "version": 2, "settings": [{}]}',
    ],
)
def test_damaged_law_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "law.json").write_text(text)
    with pytest.raises(InputError, match=r"law\.json"):
        read_law(tmp_path / "law.json")


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("ceiling", [[0.5]], "ceiling: 1 entries for 4 configurations"),
        ("delay", [0.0], "samples differ in number"),
        ("stage", [7] * 60, "stage"),
        ("first", 0.0, "first"),
        ("rise", float("nan"), "rise"),
        ("tail", [[0.0] * 60] * 2, "lack a part"),
    ],
)
def test_a_damaged_posterior_is_named(law: Law, tmp_path: Path, part: str, value: object, message: str) -> None:
    write_law(law, tmp_path / "law.json")
    data = json.loads((tmp_path / "law.json").read_text())
    data["posteriors"][0][part] = value
    (tmp_path / "law.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=rf"law\.json: posteriors\.0.*{message}.*write it again"):
        read_law(tmp_path / "law.json")


def test_a_configuration_without_its_posterior_is_named(law: Law, tmp_path: Path) -> None:
    path = rewritten(law, tmp_path / "law.json", posteriors=[])
    with pytest.raises(InputError, match="posteriors"):
        read_law(path)
    write_law(law, path)
    data = json.loads(path.read_text())
    for change in ({"posterior": 1}, {"index": 9}):
        settings = [data["settings"][0] | change, *data["settings"][1:]]
        path.write_text(json.dumps(data | {"settings": settings}))
        with pytest.raises(InputError, match="configuration"):
            read_law(path)


def test_keys_of_later_versions_are_ignored(law: Law, tmp_path: Path) -> None:
    stored = read_law(rewritten(law, tmp_path / "law.json", new={"a": 1}))
    assert stored.summary["new"] == {"a": 1}


def test_no_other_file_is_overwritten(law: Law, tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_text('{"step": 1}')
    with pytest.raises(InputError, match="is not a law"):
        write_law(law, log)
    assert log.read_text() == '{"step": 1}'
    write_law(law, tmp_path / "law.json")
    write_law(law, tmp_path / "law.json")
