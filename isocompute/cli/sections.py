"""The list of commands under headings, in the order in which somebody meets them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["Sections"]


class Sections(TyperGroup):
    """A group whose help has a section for each `rich_help_panel` of its commands; plain text, as all help is here."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section a panel, with names in one column over all of them."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            command = self.commands[name]
            row = (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
            sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
