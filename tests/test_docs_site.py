"""The documentation site builds without broken links, and its pictures agree with their tables."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.tvm_hybrid.report.page.browser import NAMES, Browser, chromium
from tools.api_reference import anchor
from tools.docs_site import SEARCH_SCRIPT, made_pages, page_of, with_languages, with_links
from tools.speed_picture import PICTURE, Row, draw, fingerprint, shown_rows, table_rows

ROOT = Path(__file__).resolve().parents[1]
README_LINES = 160
NAVIGATION_ENTRIES = 25
PATIENCE = 60.0  # seconds until the search has its index and answers


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. mkdocs is strict: a broken link or anchor fails."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"contributing", "changelog"}
    assert pages <= {path.stem for path in site.glob("*.html")}
    made = [Path(name).with_suffix(".html") for name in made_pages()]
    assert len(made) > 5 and all((site / name).is_file() for name in made)
    extending = {path.stem for path in (ROOT / "docs" / "extending").glob("*.md")}
    assert extending <= {path.stem for path in (site / "extending").glob("*.html")}
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= {path.stem for path in (site / "notebooks").glob("*.html")}


def test_reading_needs_no_network(site: Path) -> None:
    """Scripts, styles, fonts and pictures are part of the site."""
    loaded = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=[\"'](?:https?:)?//[^\"']+[^>]*>")
    for path in site.rglob("*.html"):
        found = [tag for tag in loaded.findall(path.read_text()) if 'rel="canonical"' not in tag]
        assert not found, (path.name, found)


def test_files_that_pages_link_exist(site: Path) -> None:
    target = re.compile(
        r"<(?:a|script|img|link)\b[^>]*? (?:href|src)=[\"']([^\"'#:?]+)[^\"':]*[\"']"
    )
    for path in site.rglob("*.html"):
        found = {name for name in target.findall(path.read_text()) if path.name != "404.html"}
        missing = [name for name in sorted(found) if not (path.parent / unquote(name)).exists()]
        assert not missing, (path.name, missing)


def test_search_works_from_the_disk(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    assert "class IFrameWorker" in (site / SEARCH_SCRIPT).read_text()
    for path in site.rglob("*.html"):
        text = path.read_text()
        script, bundle = text.find(f'{SEARCH_SCRIPT}">'), text.find("assets/javascripts/bundle.")
        assert 0 < script < bundle or bundle < 0, path.name


@pytest.mark.skipif(chromium() is None, reason=f"no browser: {', '.join(NAMES)}")
@pytest.mark.parametrize("name", ["partition_for_tvm_hybrid", "IOBinding.bind_input"])
def test_search_in_a_page_from_the_disk_finds_a_name(site: Path, tmp_path: Path, name: str) -> None:
    program = chromium()
    assert program is not None
    links = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"
    with Browser(program, tmp_path) as browser:
        browser.call("Page.navigate", url=(site / "index.html").as_uri())
        _wait_for(browser, "document.querySelector('.md-search-result__meta') !== null")
        _wait_for(browser, "document.querySelectorAll('iframe').length > 0")
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.type(name.rpartition(".")[2])
        _wait_for(browser, f"{links}.some(each => each.endsWith('#{anchor(name)}'))")
        assert not browser.errors


def _wait_for(browser: Browser, condition: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not browser.run(condition):
        assert time.monotonic() < deadline, f"never: {condition}; {browser.errors}"
        time.sleep(0.1)


def test_no_diagram_needs_a_script(site: Path) -> None:
    for path in site.glob("*.html"):
        assert "flowchart" not in path.read_text(), path.name


def test_navigation_is_short() -> None:
    """Two levels are shown; deeper ones are folded. No section is named like its first page."""
    text = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    depths = [len(line) - len(line.lstrip()) for line in text.splitlines()]
    assert 0 < depths.count(6) <= NAVIGATION_ENTRIES and set(depths) == {2, 6, 10}
    titles = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    sections = re.findall(r"^ +- ([^:\n]+):\n +- (\w+\.md)$", text, re.MULTILINE)
    assert len(sections) > 5
    for section, page in sections:
        assert f"# {section}" not in titles.get(page, "").splitlines(), section


def test_landing_page_names_the_cpu_of_its_chart(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert "speed.svg" in text and "Each bar is the time of" in text


def test_links_lead_to_pages() -> None:
    text = "[a](fusion.md#x) [b](../CHANGELOG.md) [`c.py`](../tools/c.py) ![p](speed.svg) [w](http://x/y)"
    mended = with_links(text, "docs/page.md", "page.md")
    assert mended == "[a](fusion.md#x) [b](changelog.md) `c.py` ![p](speed.svg) [w](http://x/y)"
    mended = with_links("[errors](../microkernels/base/errors.py)", "docs/page.md", "page.md")
    assert mended == "[errors](reference/errors.md)"
    assert page_of("notebooks/quickstart.ipynb") == "notebooks/quickstart.ipynb"
    assert page_of("setup.cfg") is None


def test_code_has_its_language(site: Path) -> None:
    text = """Text:

    pip install x  # a command

    make

- item

    its second paragraph

Then:

    x = f(1)

    y -> z
"""
    wanted = """Text:

```bash
pip install x  # a command

make
```

- item

    its second paragraph

Then:

```text
x = f(1)

y -> z
```
"""
    assert with_languages(text) == wanted
    assert with_languages("    x = f(1)\n") == "```python\nx = f(1)\n```\n"
    assert with_languages("    A=1 .venv/bin/x\n") == "```bash\nA=1 .venv/bin/x\n```\n"
    page = (site / "getting_started.html").read_text()
    assert 'python3<span class="w"> </span>-m' in page  # the words of a command
    assert '<span class="kn">import</span>' in page  # a keyword of Python


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_speed_picture_is_up_to_date() -> None:
    """`python -m tools.speed_picture` draws it again."""
    assert fingerprint(shown_rows()) in PICTURE.read_text()


def test_speed_picture_shows_each_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [Row("one", 1.5, 2.0), Row("two", 0.5, 1.0)]
    draw(rows, tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert "one" in text and "two" in text and fingerprint(rows) in text
    assert fingerprint(rows) != fingerprint(rows[:1])
    with pytest.raises(ValueError, match="no table of models"):
        table_rows("# Speed\n")
