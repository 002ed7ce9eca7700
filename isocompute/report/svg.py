"""Charts as SVG inside a page: small, without names that clash, and with colours that a style sheet can change.

A scatter of dots is most of a chart's bytes. Dots of one colour become one path of zero-length strokes with round ends,
a dozen bytes each; coordinates keep a tenth of a pixel.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from isocompute.report.style import DARK, themed

__all__ = ["dark_rules", "inline_svg"]

_PLACES = re.compile(r' (?:d|transform|x|y|x1|y1|x2|y2|width|height)="[^"]*"')
_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
_DOT = re.compile(
    r'<path transform="translate\((?P<x>-?[\d.]+),(?P<y>-?[\d.]+)\)" '
    r'd="M(?P<r>[\d.]+),0A(?P=r),(?P=r),0,1,1,-(?P=r),0A(?P=r),(?P=r),0,1,1,(?P=r),0" '
    r'fill="(?P<fill>[^"]+)"(?: stroke-width="[\d.]+")?(?P<opacity> opacity="[\d.]+")?/>'
)


def inline_svg(chart: Any, *, key: str, label: str) -> str:
    """The chart as an `<svg>` that scales with the page; `key` keeps its ids apart from other charts'."""
    import vl_convert as vlc

    svg = str(vlc.vegalite_to_svg(themed(chart, background=None)))
    svg = _dots(svg)
    svg = _PLACES.sub(lambda attribute: _NUMBER.sub(_short, attribute[0]), svg)
    svg = re.sub(r' (?:id="|xlink:href="#)(?=[\w-])', lambda m: m[0] + key, svg)
    svg = svg.replace("url(#", f"url(#{key}")
    svg = re.sub(r' (?:aria-hidden|role|aria-roledescription|aria-label)="[^"]*"', "", svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    width = size[1] if size else "400"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{escape(label)}" '
        f'style="--w:{width}" viewBox="{size[0][9:-1] if size else "0 0 400 300"}">'
    )
    return head + svg[svg.index(">") + 1 :]


def dark_rules(selector: str) -> str:
    """CSS that gives every colour of our charts its dark counterpart."""
    out = []
    for light, dark in DARK.items():
        out += [f'{selector} [{side}="{light}"]{{{side}:{dark}}}' for side in ("fill", "stroke")]
    return "\n".join(out)


def _dots(svg: str) -> str:
    """Runs of dots with one look as one path each."""
    out: list[str] = []
    end, look, path = 0, None, ""
    for match in _DOT.finditer(svg):
        same = (match["r"], match["fill"], match["opacity"])
        if look is not None and (match.start() > end or same != look):
            out.append(_path(look, path))
            look, path = None, ""
        out.append(svg[end : match.start()])
        look = same
        path += f"M{match['x']},{match['y']}h0"
        end = match.end()
    if look is not None:
        out.append(_path(look, path))
    return "".join(out) + svg[end:]


def _path(look: tuple[str, str, str | None], path: str) -> str:
    radius, colour, opacity = look
    width = f"{2 * float(radius):.1f}"
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width}" stroke-linecap="round"{opacity or ""}/>'


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")
