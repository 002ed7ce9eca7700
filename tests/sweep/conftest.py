"""The cluster's tests wait more than they compute: begun first, they run beside all the others."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "tests/sweep/test_ray" not in item.nodeid)  # stable: all else stays in order
