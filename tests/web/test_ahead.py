"""The process that makes the first law: what it sends, and what it leaves to the app."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from isocompute.data import load, writer
from isocompute.law import Law, curves_of, fit_law, law_to_json
from isocompute.law.families import Family
from isocompute.web import glance as glance_module
from isocompute.web import server, wire
from isocompute.web.ahead import Ahead
from isocompute.web.fitting import Fitted
from isocompute.web.glance import glance
from isocompute.web.source import POINTS, Source
from isocompute.web.wire import pack, unpack
from tests.conftest import rising, write_points


def version(folder: Path) -> str:
    return Source(str(folder)).snapshot().version


def same(a: Any, b: Any) -> bool:
    """Every number and array of two objects."""
    if dataclasses.is_dataclass(a) and type(a).__name__ != "Family":
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.fixture(scope="module")
def law(wide: Path) -> Law:
    curves, metric, unit = curves_of(load(str(wide)))
    return fit_law(curves, metric=metric, unit=unit, replicates=20)


def test_a_law_arrives_as_it_was_sent(law: Law) -> None:
    arrived = unpack(pack(("final", law)))[1]
    assert same(arrived, law)
    assert arrived.joint.fits[0] is arrived.settings[0]  # once, as it was
    assert law_to_json(arrived) == law_to_json(law)


def test_only_what_a_law_is_made_of_is_sent(law: Law) -> None:
    with pytest.raises(TypeError, match="Fitted is not a class that is sent"):
        pack(Fitted(law, 20))
    with pytest.raises(KeyError):
        unpack(pack(law).replace(b'"Law"', b'"Oaf"'))


def test_it_sends_a_rough_law_and_then_the_one_of_fit(wide: Path) -> None:
    ahead = Ahead(Source(str(wide)), version(wide))
    rough, final = (ahead.law(stage, version(wide)) for stage in ("rough", "final"))
    ahead.close()
    assert rough is not None and final is not None
    assert rough.rough is not None and (rough.rough.replicates, rough.rough.of) == (50, 1000)
    assert final.rough is None
    curves, metric, unit = curves_of(load(str(wide)))
    assert law_to_json(final.law) == law_to_json(fit_law(curves, metric=metric, unit=unit))


def test_a_law_of_other_files_is_no_law_of_these(wide: Path) -> None:
    ahead = Ahead(Source(str(wide)), version(wide))
    assert ahead.law("final", "another version") is None
    ahead.close()
    late = Ahead(Source(str(wide)), "a version before this one")
    assert late.law("final", "a version before this one") is None
    late.close()


def test_what_cannot_be_fitted_is_left_to_the_app(tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising()[:2], problems_per_batch=32, rollouts_per_problem=8)
    ahead = Ahead(Source(str(tmp_path)), version(tmp_path))
    assert ahead.law("rough", version(tmp_path)) is None
    assert ahead.law("final", version(tmp_path)) is None
    ahead.close()


def test_a_process_that_is_ended_is_waited_for_by_nobody(wide: Path) -> None:
    ahead = Ahead(Source(str(wide)), version(wide))
    ahead.close()
    assert ahead.law("final", version(wide)) is None


def test_a_process_that_says_nothing_is_given_up(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isocompute.web.ahead._LONGEST", 0.0)
    ahead = Ahead(Source(str(wide)), version(wide))
    assert ahead.law("final", version(wide)) is None
    assert ahead._process.poll() is not None


def test_it_ends_with_the_app_however_that_ends() -> None:
    busy = (
        "import threading; from isocompute.web import ahead; threading.Thread(target=ahead._end_with_parent).start(); "
    )
    with subprocess.Popen([sys.executable, "-c", busy + "threading.Event().wait(60)"], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.close()  # as when the app is gone
        assert child.wait(30) == 0


def test_an_app_that_cannot_start_it_goes_without(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Ahead:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(server, "Ahead", refuse)
    with server.bind(str(wide)).socket:
        pass


def test_ordinary_runs_are_read_as_load_reads_them(wide: Path) -> None:
    seen = glance(str(wide))
    assert seen is not None
    curves, metric, unit = curves_of(load(str(wide)))
    assert seen[1:] == (metric, unit)
    assert all(map(same, seen[0], curves)) and len(seen[0]) == len(curves)


def test_seeds_are_those_that_load_sees_wherever_they_ran(tmp_path: Path) -> None:
    """Every run of the language-model engine writes its device and micro-batch."""
    for seed, micro_batch in ((0, 125), (1, 256)):
        told = {"engine": "lm", "device": "cuda", "micro_batch": micro_batch, "hostname": f"node{seed}"}
        write_points(tmp_path / f"s{seed}", rising(), problems_per_batch=32, rollouts_per_problem=8, seed=seed, **told)
    seen = glance(str(tmp_path))
    assert seen is not None
    assert all(map(same, seen[0], curves_of(load(str(tmp_path)))[0]))
    assert len({curve.recipe for curve in seen[0]}) == 1


def test_every_part_of_a_law_can_be_sent() -> None:
    left, seen = [Law], {Family}
    while left:
        each = left.pop()
        parts = {part for hint in get_type_hints(each).values() for part in dataclasses_in(hint)} - seen
        seen |= parts
        left += parts
    assert {part.__name__ for part in seen - {Family}} <= set(wire._CLASSES)
    assert len(seen) > 10


def dataclasses_in(hint: Any) -> set[type]:
    """The dataclasses that a type is made of."""
    inside = [found for part in get_args(hint) for found in dataclasses_in(part)]
    return {*inside, *([hint] if dataclasses.is_dataclass(hint) and isinstance(hint, type) else [])}


ODD: dict[str, Callable[[str], str]] = {
    "torn": lambda text: text[:-3],
    "not a number": lambda text: text.replace('"avg@4": 0.', '"avg@4": "0.', 1).replace("}", '"}', 1),
    "not finite": lambda text: text.replace(
        '"step": 20, "rollouts": 5120, "avg@4": ', '"step": 20, "rollouts": 5120, "avg@4": NaN, "x": '
    ),
    "another key": lambda text: text.replace('"avg@4"', '"reward"', 1),
    "a step again": lambda text: text.replace('"step": 20,', '"step": 10,'),
    "compute goes back": lambda text: text.replace('"rollouts": 5120,', '"rollouts": 1,'),
    "empty": lambda _: "",
    "a list": lambda text: "[]\n" + text,
}


@pytest.mark.parametrize("how", ODD)
def test_anything_else_is_left_to_load(tmp_path: Path, how: str) -> None:
    for n in (8, 16):
        write_points(tmp_path / f"32x{n}", rising(), problems_per_batch=32, rollouts_per_problem=n)
    assert glance(str(tmp_path)) is not None
    path = tmp_path / "32x16" / POINTS
    before = path.read_text()
    path.write_text(ODD[how](before))
    assert path.read_text() != before
    assert glance(str(tmp_path)) is None


def test_settings_that_load_refuses_are_left_to_it(tmp_path: Path) -> None:
    write_points(tmp_path / "32x8", rising(), problems_per_batch=32, rollouts_per_problem=8)
    settings = tmp_path / "32x8" / "run.json"
    settings.write_text(settings.read_text().replace('"problems_per_batch": 32', '"problems_per_batch": 0'))
    assert glance(str(tmp_path)) is None


@pytest.mark.parametrize("run", ["", "32x8/run.json"])
def test_a_folder_without_settings_or_runs_is_left_to_load(tmp_path: Path, run: str) -> None:
    if run:
        write_points(tmp_path / "32x8", rising(), problems_per_batch=32, rollouts_per_problem=8)
        (tmp_path / run).unlink()
    assert glance(str(tmp_path)) is None


def test_files_are_named_as_the_writer_names_them() -> None:
    assert (POINTS, glance_module._SETTINGS) == (writer.POINTS, writer.SETTINGS)
