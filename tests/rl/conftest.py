"""Models this small are faster on one thread, and tests run beside each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from isocompute.rl.model.fetch import fetch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint folder of SmolLM2-135M-Instruct, converted once for all processes. Do not write into it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # that of all processes
    with FileLock(root / "smollm2.lock"):
        fetch("smollm2", root / "smollm2")
    return root / "smollm2"
