"""Pieces of a page: text is escaped where it enters, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["facts", "items", "paragraphs", "table", "tag"]


def tag(name: str, *inside: str, **attributes: str | None) -> str:
    """An element around finished HTML. A trailing `_` of an attribute's name is dropped, `_` inside becomes `-`."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{''.join(inside)}</{name}>"


def paragraphs(texts: Iterable[str], **attributes: str | None) -> str:
    """A paragraph for each text."""
    return "".join(tag("p", escape(text), **attributes) for text in texts)


def items(texts: Iterable[str], **attributes: str | None) -> str:
    """A list of texts."""
    return tag("ul", *(tag("li", escape(text)) for text in texts), **attributes)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Terms and what they are."""
    return tag("dl", *(tag("dt", escape(key)) + tag("dd", escape(text)) for key, text in pairs))


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, sortable: bool = False) -> str:
    """A table in a box that scrolls sideways on its own; where `sortable`, headings are buttons."""
    heads = [
        tag("th", tag("button", escape(name), type="button") if sortable else escape(name), scope="col")
        for name in columns
    ]
    body = [
        tag(
            "tr",
            tag("th", escape(row[0]), scope="row"),
            *(tag("td", escape(cell), class_="number" if _is_number(cell) else None) for cell in row[1:]),
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


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in ("–", ".", "-", "−", "≤", "≥")
