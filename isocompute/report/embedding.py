"""A figure's numbers inside the page: whole where they are few, evenly thinned where they would swell it."""

from __future__ import annotations

import json
from typing import Any

from isocompute.report.charts.marks import thin
from isocompute.report.model import Figure

__all__ = ["embedded_data"]

_MOST_BYTES = 100_000
"""Of one figure: all of them together, drawings included, then stay under 5 MB."""
_MOST_ITEMS = 512
_FEWEST_ITEMS = 8


def embedded_data(figure: Figure) -> tuple[str, bool]:
    """`figure.to_json()` as text that is safe inside `<script>`, and whether lists of it were thinned to fit.

    Lists of one length keep the same items, so compute and value still belong together.
    """
    whole = figure.to_json()
    text = _text(whole)
    thinned, most = False, _MOST_ITEMS
    while len(text) > _MOST_BYTES and most >= _FEWEST_ITEMS:
        note = f"lists of more than {most} items are thinned; report --figure {figure.name} --json has all of them"
        text = _text({**whole, "thinned": note, "data": _thinned(whole["data"], most)})
        thinned, most = True, most // 2
    return text, thinned


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _thinned(data: Any, most: int) -> Any:
    if isinstance(data, dict):
        return {key: _thinned(value, most) for key, value in data.items()}
    return [_thinned(item, most) for item in thin(data, most)] if isinstance(data, list | tuple) else data
