"""Parts of an HTML page: tags, charts as SVG, and the data of a figure. Each function escapes the text it is given.

The SVG is small, its ids are unique on the page, and a style sheet can change its colours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from isocompute.report.charts.style import DARK, themed, thin
from isocompute.report.figures import Figure


def tag(name: str, *inside: str, **attributes: str | None) -> str:
    """An element around HTML that is already escaped. `class_` means `class` and `aria_label` means `aria-label`."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{text}>{''.join(inside)}</{name}>"


def items(texts: Iterable[str], **attributes: str | None) -> str:
    """A list of texts."""
    return tag("ul", *(tag("li", escape(text)) for text in texts), **attributes)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms with their descriptions."""
    return tag("dl", *(tag("dt", escape(key)) + tag("dd", escape(text)) for key, text in pairs))


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, sortable: bool = False) -> str:
    """A table in a box that scrolls sideways; the headings are buttons if it is `sortable`."""
    heads = [
        tag("th", tag("button", escape(name), type="button") if sortable else escape(name), scope="col")
        for name in columns
    ]
    number = tuple("0123456789–.-−≤≥")
    body = [
        tag(
            "tr",
            tag("th", escape(row[0]), scope="row"),
            *(tag("td", escape(cell), class_="number" if cell.startswith(number) else None) for cell in row[1:]),
        )
        for row in rows
    ]
    whole = tag(
        "table",
        tag("caption", escape(caption)),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        class_="sortable" if sortable else None,
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


# Charts as SVG --------------------------------------------------------------------------------------------------------

_PLACES = re.compile(r' (?:d|transform|x|y|x1|y1|x2|y2|width|height)="[^"]*"')
_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
_DOT = re.compile(
    r'<path transform="translate\((?P<x>-?[\d.]+),(?P<y>-?[\d.]+)\)" '
    r'd="M(?P<r>[\d.]+),0A(?P=r),(?P=r),0,1,1,-(?P=r),0A(?P=r),(?P=r),0,1,1,(?P=r),0" '
    r'fill="(?P<fill>[^"]+)"(?: stroke-width="[\d.]+")?(?P<opacity> opacity="[\d.]+")?/>'
)


def inline_svg(chart: Any, *, key: str, label: str) -> str:
    """The chart as an `<svg>` that scales with the page; `key` makes its ids unique on the page."""
    import vl_convert as vlc

    svg = _merge_dots(str(vlc.vegalite_to_svg(themed(chart, background=None))))
    svg = _PLACES.sub(lambda a: _NUMBER.sub(lambda x: f"{float(x[0]):.1f}".removesuffix(".0"), a[0]), svg)
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
    """CSS that replaces every colour of a chart by its counterpart for dark pages."""
    sides = [(light, dark, side) for light, dark in DARK.items() for side in ("fill", "stroke")]
    return "\n".join(f'{selector} [{side}="{light}"]{{{side}:{dark}}}' for light, dark, side in sides)


def _merge_dots(svg: str) -> str:
    """Merge adjacent dots of the same style into one path, since dots are most of a chart's bytes."""
    out: list[str] = []
    end, style, path = 0, "", ""
    for match in _DOT.finditer(svg):
        radius, colour, opacity = match["r"], match["fill"], match["opacity"] or ""
        mine = f'stroke="{colour}" stroke-width="{2 * float(radius):.1f}" stroke-linecap="round"{opacity}'
        if path and (match.start() > end or mine != style):
            out.append(f'<path d="{path}" {style}/>')
            path = ""
        out.append(svg[end : match.start()])
        path += f"M{match['x']},{match['y']}h0"
        style, end = mine, match.end()
    if path:
        out.append(f'<path d="{path}" {style}/>')
    return "".join(out) + svg[end:]


# A figure's numbers ---------------------------------------------------------------------------------------------------

_MOST_BYTES = 100_000
"""Most bytes of one figure's data, so that a page with all figures stays under 5 MB."""


def embedded_data(figure: Figure) -> tuple[str, bool]:
    """`figure.to_json()` as text that is safe inside `<script>`, and whether lists of it were thinned to fit.

    Lists of the same length keep the same items, so compute and value still match.
    """
    whole = figure.to_json()
    text = _text(whole)
    thinned, most = False, 512
    while len(text) > _MOST_BYTES and most >= 8:
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
