"""What a figure is: panels with a caption and their numbers, or the name of what the data lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

if TYPE_CHECKING:
    from isocompute.report.evidence import Evidence

__all__ = ["Drawing", "Figure", "FigureSpec", "Missing", "Needs"]


@dataclass(frozen=True)
class Drawing:
    """What a chart's function returns: panels of one size, one sentence of result, the numbers."""

    panels: Sequence[Any]
    """Altair charts. A page lets them flow, a file sets them side by side."""
    sentences: Sequence[str]
    """What these data show, with numbers and intervals; no full stops."""
    data: dict[str, Any]
    columns: int | None = None
    """Panels side by side; where None, as many as read well."""


@dataclass(frozen=True)
class Needs:
    """What a chart's function returns where the data do not support it: the runs or metrics that would."""

    text: str


@dataclass(frozen=True)
class FigureSpec:
    """A figure by name: what it shows, which figure of a paper it is, and who draws it."""

    name: str
    title: str
    source: str
    description: str
    make: Callable[[Evidence], Drawing | Needs]

    def to_json(self) -> dict[str, Any]:
        """One row of `report --figures --json`."""
        return {"name": self.name, "title": self.title, "source": self.source, "description": self.description}


@dataclass(frozen=True)
class Figure:
    """A figure that the data support."""

    name: str
    title: str
    source: str
    sentences: tuple[str, ...]
    panels: tuple[Any, ...]
    data: dict[str, Any]
    columns: int = 2

    @property
    def caption(self) -> str:
        """What these data show, with numbers and intervals."""
        return " ".join(f"{sentence}." for sentence in self.sentences)

    @cached_property
    def chart(self) -> Any:
        """All panels as one Altair chart with a title."""
        title = alt.TitleParams(self.title, subtitle=self.source, anchor="start", fontSize=15, offset=14)
        if len(self.panels) == 1:
            return alt.hconcat(self.panels[0]).properties(title=title)
        joined = alt.concat(*self.panels, columns=min(self.columns, len(self.panels)), spacing=28)
        return joined.resolve_scale(color="independent", shape="independent").properties(title=title)

    def save(self, path: str | Path) -> Path:
        """Write HTML, PNG, SVG or PDF by the ending of the name; HTML needs no network."""
        from isocompute.report.charts.style import save

        return save(self.chart, path)

    def to_json(self) -> dict[str, Any]:
        """Name, title, source, caption and `data`: what `report --figure NAME --json` prints."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "caption": self.caption,
            "data": self.data,
        }


@dataclass(frozen=True)
class Missing:
    """A figure that the data do not support, and what it needs."""

    name: str
    title: str
    source: str
    needs: str

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"name": self.name, "title": self.title, "source": self.source, "needs": self.needs}
