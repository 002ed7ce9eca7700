from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.tools import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: str | bytes, name: str = "some.dat") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return write
