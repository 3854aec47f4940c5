"""Hooks of mkdocs for building the site: adds pages from outside docs/, and repairs links.

Notebooks, CONTRIBUTING.md and CHANGELOG.md are not in docs/. The reference and the page
Architecture have no file: they are made from the code. A link to a file that a page shows, or is
made from, leads to the page; a link to any other file of the project becomes the file's name.

Indented code gets the colours of its language: commands, Python, or none.

The site needs no network. A script in this file makes the search work in pages opened from disk.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Source file that pages outside the site link to -> the page that is made from it.
MADE = {
    "microkernels/base/errors.py": "reference/errors.md",
    "tools/architecture.py": "architecture.md",
    "tvm_hybrid/__init__.py": "reference/index.md",
    "tvm_hybrid/cli/group.py": "reference/commands.md",
}
NOTEBOOKS = "notebooks"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n?(?:\n+(?= {4}))?)+")
LIST_ITEM = re.compile(r"\s|[-*] |\d+\. ")
COMMANDS = "tvm-hybrid|pip|python3?|make|curl|git|g\\+\\+|gcc|taskset|docker"
SHELL = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\S*\.venv/\S*bin/|(?:{COMMANDS}) )")
MEASURED = "<!-- what README.md measured -->"

# A browser starts no Worker from a file:// page. This one runs the worker's script in a hidden
# frame. The theme looks for the name IFrameWorker; mkdocs.yml names the file.
SEARCH_SCRIPT = "iframe-worker.js"
SEARCH_WORKER = """\
"use strict";
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inner = (this.inner = frame.contentWindow);
    inner.document.write("<!doctype html><body>");
    inner.document.close();
    inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const load = (source) =>
      new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        Object.assign(script, { src: source, onload: resolve, onerror: reject });
        inner.document.body.append(script);
      });
    inner.importScripts = async (...sources) => {
      for (const source of sources) await load(source);
    };
    this.ready = load(url);
  }
  postMessage(data) {
    this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
  }
}
if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
"""

# Long lines of code are wrapped, not cut, and the text is wide on wide screens. Names in tables of
# the reference stay on one line.
STYLE_FILE = "site.css"
STYLE = """\
.md-grid { max-width: 76rem; }
.md-typeset pre > code, .highlight-ipynb pre { white-space: pre-wrap !important; }
.md-typeset td:first-child a > code { white-space: nowrap; }
"""


def page_of(path: str) -> str | None:
    """The site's page for a file of the project, relative to docs/; None if there is none.

    >>> page_of("docs/fusion.md"), page_of("CHANGELOG.md"), page_of("notebooks/models.py")
    ('fusion.md', 'changelog.md', None)
    """
    if found := PAGES.get(path) or MADE.get(path):
        return found
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    shown = path.startswith(NOTEBOOKS + "/") and path.endswith((".ipynb", ".md"))
    return path if shown else None


def with_links(markdown: str, source: str, page: str) -> str:
    """A page's text in which links lead to pages; other files become their names.

    Links are relative to `source`, the file of the project that becomes `page`.
    """

    def mended(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        found = page_of(path)
        if found is None:
            return text if text.startswith("`") else f"`{path}`" if text == target else text
        relative = os.path.relpath(found, os.path.dirname(page) or ".")
        return f"[{text}]({relative}{anchor})"

    return LINK.sub(mended, markdown)


def with_languages(markdown: str) -> str:
    """A page's text in which indented code has fences that name its language, for its colours."""

    def fenced(match: re.Match[str]) -> str:
        before = markdown[: match.start()].rstrip("\n").rpartition("\n")[2]
        if LIST_ITEM.match(before):
            return match[0]  # a paragraph of a list
        code = textwrap.dedent(match[0]).strip("\n")
        return f"```{language_of(code)}\n{code}\n```\n"

    return INDENTED.sub(fenced, markdown)


def language_of(code: str) -> str:
    """The language of a code block: commands, Python if it can be parsed, else text.

    >>> language_of("tvm-hybrid doctor"), language_of("x = 1"), language_of("x -> y")
    ('bash', 'python', 'text')
    """
    if SHELL.match(code):
        return "bash"
    try:
        ast.parse(code)
    except SyntaxError:
        return "text"
    return "python"


def with_measured(markdown: str) -> str:
    """A page's text with README.md's measured figures, and their CPUs, in place of its mark."""
    if MEASURED not in markdown:
        return markdown
    figures = (ROOT / "README.md").read_text().split("<!-- measured: begin -->")[1]
    figures = figures.split("<!-- measured: end -->")[0]
    return markdown.replace(MEASURED, with_links(figures, "README.md", "index.md"))


def source_of(page: str) -> str:
    """The file of the project that a page comes from."""
    for source, name in PAGES.items():
        if page == name:
            return source
    return page if page.startswith(NOTEBOOKS + "/") else f"docs/{page}"


def made_pages() -> dict[str, str]:
    """The pages that are made from the code: path in docs/ -> Markdown."""
    # mkdocs loads this file by its path, so that the project's packages may not be importable yet.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tools import api_reference, architecture

    rooms = architecture.read_rooms()
    return {"architecture.md": architecture.page(rooms)} | api_reference.pages()


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not in docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, SEARCH_SCRIPT, content=SEARCH_WORKER))
    files.append(File.generated(config, STYLE_FILE, content=STYLE))
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, text in made_pages().items():
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / NOTEBOOKS).iterdir()):
        if path.suffix in (".ipynb", ".md", ".png", ".svg"):
            files.append(
                File(
                    f"{NOTEBOOKS}/{path.name}", str(ROOT), config.site_dir, use_directory_urls=False
                )
            )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Repairs the links of a page, adds the measured figures, and names languages of code."""
    uri = page.file.src_uri
    return with_languages(with_measured(with_links(markdown, source_of(uri), uri)))


# Runs before the plugin that reads notebooks.
on_files.mkdocs_priority = 100  # type: ignore[attr-defined]
