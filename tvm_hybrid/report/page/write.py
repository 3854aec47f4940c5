"""Writes the page: one HTML file with its style, its scripts and its data in it."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from importlib.resources import files

import msgspec

from microkernels.base.files import write_whole

from .data import PageData

# In the order in which they are run, as one script.
SCRIPTS = (
    "elements.js",
    "panel.js",
    "graph.js",
    "table.js",
    "roofline.js",
    "sections.js",
    "page.js",
)


def write_page(data: PageData, path: str | os.PathLike[str]) -> None:
    """Writes the page at once or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    write_whole(path, page_of(data), "the report")


def page_of(data: PageData) -> str:
    """The page as text. It loads nothing, and runs no script but its own."""
    joined = "\n".join(_file(name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{joined}\n}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    contents = {
        "title": html.escape(data.head.model),
        "style": _file("style.css"),
        "scripts": script,
        "data": embedded(data),
        "hash": f"'sha256-{digest}'",
    }
    # In one go: what is put in may itself look like a place.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: contents[place[1]], _file("page.html"))


def embedded(data: PageData) -> str:
    """The data as JSON that no markup in it can end."""
    text = msgspec.json.encode(data, enc_hook=str).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files(__package__) / "static" / name).read_text("utf-8")
