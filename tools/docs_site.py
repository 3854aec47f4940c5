"""What mkdocs calls while it builds the site: brings in pages that are not in docs/, mends links.

Notebooks, CONTRIBUTING.md and CHANGELOG.md have their places elsewhere in the project. A link to
such a file leads to its page; one to any other file of the project becomes the file's name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOKS = "notebooks"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def page_of(path: str) -> str | None:
    """The page of the site that shows a file of the project, named as in docs/; None if none does.

    >>> page_of("docs/fusion.md"), page_of("CHANGELOG.md"), page_of("Makefile")
    ('fusion.md', 'changelog.md', None)
    """
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.startswith(NOTEBOOKS + "/") else None


def with_links(markdown: str, source: str, page: str) -> str:
    """A page's text whose links lead to pages; other files are only named.

    Parameters
    ----------
    markdown : str
        The text.
    source : str
        The file it comes from, relative to the project; links are relative to it.
    page : str
        The page it becomes.
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


def source_of(page: str) -> str:
    """The file of the project that a page comes from."""
    for source, name in PAGES.items():
        if page == name:
            return source
    return page if page.startswith(NOTEBOOKS + "/") else f"docs/{page}"


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not in docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / NOTEBOOKS).iterdir()):
        if path.suffix in (".ipynb", ".md", ".png", ".svg"):
            files.append(
                File(
                    f"{NOTEBOOKS}/{path.name}", str(ROOT), config.site_dir, use_directory_urls=False
                )
            )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mends the links of a page."""
    return with_links(markdown, source_of(page.file.src_uri), page.file.src_uri)


# Before the plugin that reads notebooks looks at the files.
on_files.mkdocs_priority = 100  # type: ignore[attr-defined]
