"""The examples in docstrings run."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType

import pytest

from isocompute.report import evidence
from isocompute.report import page as writing


@pytest.mark.parametrize("module", [evidence, writing])
def test_examples(module: ModuleType, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").symlink_to(sweep / "runs")
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
