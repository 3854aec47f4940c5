"""The page in a real browser: graph, search, table and themes work without console errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tvm_hybrid.report.page.browser import NAMES, Browser, chromium
from tests.tvm_hybrid.report.page.hostile import MARKUP, NAME, hostile_page
from tvm_hybrid.report.page.data import PageData, write_page

PROGRAM = chromium()

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"no Chromium: neither $CHROMIUM nor {', '.join(NAMES)} is a program"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PageData:
    return hostile_page(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def page(data: PageData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(data, path)
    return path


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(opened: Browser, page: Path) -> Iterator[Browser]:
    opened.open(page)
    yield opened
    assert opened.errors == []
    assert opened.run("window.injected") is None


def test_names_are_shown_as_they_are(browser: Browser) -> None:
    assert browser.run("document.querySelector('h1').textContent") == NAME
    assert MARKUP in browser.run("document.getElementById('about').textContent")


def test_the_graph_moves_and_zooms_by_keyboard_and_mouse(browser: Browser) -> None:
    assert browser.run("document.querySelectorAll('.box').length") == 5
    assert browser.run("document.querySelectorAll('.edge').length") == 4
    assert browser.run("document.querySelectorAll('.box.left').length") == 1
    view = "document.querySelector('#graph-view svg').getAttribute('viewBox')"
    views = [browser.run(view)]

    def changed() -> bool:
        views.append(browser.run(view))
        return bool(views[-1] != views[-2])

    browser.run("document.querySelector('#graph-view svg').focus()")
    for key in ("+", "-", "ArrowLeft", "ArrowDown", "0"):
        browser.press(key)
        assert changed(), key
    browser.run("document.getElementById('graph').scrollIntoView()")
    x, y = browser.run(
        "(() => { const at = document.querySelector('#graph-view').getBoundingClientRect();"
        " return [at.left + 30, at.top + 200] })()"
    )
    browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    browser.mouse("mouseMoved", x + 40, y + 30, button="left", buttons=1)
    browser.mouse("mouseReleased", x + 40, y + 30, button="left")
    assert changed()
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
    assert changed()


def test_enter_on_a_box_shows_its_region(browser: Browser) -> None:
    browser.run("document.querySelector('.box.left').focus()")
    browser.press("Enter", "\r")
    panel = browser.run("document.getElementById('panel').textContent")
    assert "left to generic code" in panel
    browser.press("ArrowUp")
    browser.press("Enter", "\r")
    panel = browser.run("document.getElementById('panel').textContent")
    for text in ("matmul + relu", "float32[8x16]", "template matmul", "configuration"):
        assert text in panel
    assert browser.run("document.querySelector('.box.chosen .title').textContent") == "matmul"


def test_search_marks_boxes_and_rows(browser: Browser) -> None:
    browser.run("document.getElementById('search').focus()")
    browser.type("ReLU")
    assert browser.run("document.getElementById('found').textContent") == "1 found"
    assert browser.run("document.querySelectorAll('.box.found').length") == 1
    assert browser.run("document.querySelectorAll('tr.found').length") == 1
    browser.press("Enter", "\r")
    assert browser.run("document.getElementById('found').textContent") == "1 of 1"
    assert browser.run("document.querySelectorAll('.box.found.chosen').length") == 1


def test_search_finds_nodes_of_the_onnx_model(browser: Browser) -> None:
    browser.run("document.getElementById('search').focus()")
    browser.type("matmul0 (MatMul)")
    browser.press("Enter", "\r")
    assert browser.run("document.getElementById('found').textContent") == "1 of 1"
    panel = browser.run("document.getElementById('panel').textContent")
    assert "Nodes of the ONNX model" in panel and "Relu1 (Relu)" in panel


def test_readers_of_a_value_are_found_by_its_name(browser: Browser) -> None:
    browser.run("document.getElementById('search').focus()")
    browser.type("relu_n1_")
    assert browser.run("document.getElementById('found').textContent") == "2 found"


def test_the_table_sorts_by_any_column(browser: Browser, data: PageData) -> None:
    names = "[...document.querySelectorAll('#kernel-table tbody .link')].map((b) => b.textContent)"
    by_time = [row.op for row in data.kernels]
    assert browser.run(names) == by_time
    sort = "document.querySelector('#kernel-table [data-column=\"0\"]').click()"
    browser.run(sort)
    assert browser.run(names) == sorted(by_time)
    browser.run(sort)
    assert browser.run(names) == sorted(by_time, reverse=True)
    state = "document.querySelector('#kernel-table th').getAttribute('aria-sort')"
    assert browser.run(state) == "descending"
    browser.run("document.querySelector('input[value=calls]').click()")
    assert len(browser.run(names)) == len(data.regions)


def test_the_roofline_has_a_point_for_each_counted_kernel(browser: Browser, data: PageData) -> None:
    counted = [row for row in data.kernels if row.work.gflops]
    assert browser.run("document.querySelectorAll('.point').length") == len(counted) > 0
    assert browser.run("document.querySelectorAll('.roof').length") == 1


def test_light_and_dark(browser: Browser, page: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.run("document.getElementById('theme').click()")
    dark = browser.run(ground)
    assert light != dark
    browser.open(page, dark=True)
    assert browser.run(ground) == dark


@pytest.mark.parametrize("width", [375, 1600])
def test_the_page_fits_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_no_table_is_cut_off_on_a_laptop(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    tables = "[...document.querySelectorAll('.scroll')]"
    assert browser.run(f"{tables}.length") > 2
    assert not browser.run(f"{tables}.some((each) => each.scrollWidth > each.clientWidth)")
