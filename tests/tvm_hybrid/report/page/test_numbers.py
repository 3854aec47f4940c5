"""The page's numbers and texts are true of models that a person has read the page of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.report.page.browser import Browser, chromium
from tests.tvm_hybrid.report.page.hostile import ROOF
from tvm_hybrid.report.kernel_speed import Cache
from tvm_hybrid.report.page.collect import collect, is_done
from tvm_hybrid.report.page.data import PageData, page_of

STEPS, WIDTH, STATES = 20, 16, 32
CACHES = (Cache("L2", 1 << 20, 200.0), Cache("L3", 1 << 25, 50.0))


def page_data(model: onnx.ModelProto) -> PageData:
    executable = tvm_hybrid.compile(model, num_threads=1)
    return collect(executable, model="m", roof=replace(ROOF, caches=CACHES), repeat=2)


def recurrent() -> onnx.ModelProto:
    """An LSTM of STEPS steps."""
    build, draw = OnnxBuilder(), np.random.default_rng(0).normal
    x = build.input("x", [STEPS, 1, WIDTH])
    inner, states = (
        build.constant(draw(size=(1, 4 * STATES, n), scale=0.1), "f4") for n in (WIDTH, STATES)
    )
    build.output(build.node("LSTM", x, inner, states, hidden_size=STATES), [STEPS, 1, 1, STATES])
    return build.model()


def looked_up() -> onnx.ModelProto:
    """Eight rows of a table of 50000 rows, times a matrix."""
    build, draw = OnnxBuilder(), np.random.default_rng(0).normal
    table = build.constant(draw(size=(50000, WIDTH)), "f4")
    rows = build.node("Gather", table, build.input("ids", [8], np.int64))
    weight = build.constant(draw(size=(WIDTH, 8)), "f4")
    build.output(build.node("MatMul", rows, weight), [8, 8])
    return build.model()


@pytest.fixture(scope="module")
def lstm() -> PageData:
    return page_data(recurrent())


def test_a_recurrent_layer_reads_its_weights_in_each_step(lstm: PageData) -> None:
    (layer,) = (each for each in lstm.regions if each.op == "recurrent")
    assert layer.moved.weights >= 4 * 4 * STATES * STATES
    assert layer.moved.again == (STEPS - 1) * layer.moved.weights
    assert layer.work.nbytes == layer.moved.total
    others = layer.moved.read + layer.moved.written
    moving = (STEPS * layer.moved.weights + others) / 200.0 / 1e3
    assert layer.work.moving_us == pytest.approx(moving) and layer.work.place == "L2"
    assert all(each.moved.again == 0 for each in lstm.regions if each is not layer)


def test_a_table_counts_as_the_rows_that_are_read() -> None:
    (rows,) = (each for each in page_data(looked_up()).regions if "take" in each.op)
    assert rows.moved.weights == 4 * 8 * WIDTH == rows.moved.written
    assert max(tensor.nbytes for tensor in rows.reads) == 4 * 50000 * WIDTH


def test_a_decision_not_to_merge_is_not_done() -> None:
    merged = Decision(node="a", op="merge projections", taken=True, reason="2 products are merged")
    assert is_done(merged)
    assert not is_done(Decision(node="a", op="b", taken=True, reason="2 are not merged: too large"))
    assert not is_done(Decision(node="a", op="tensorize", taken=False))


def test_numbers_of_one_have_no_plural(lstm: PageData) -> None:
    text = " ".join(advice.text for advice in lstm.advice)
    assert "1 regions" not in text and "1 calls" not in text
    assert "configuration of 1 region." in text or "regions." in text


@pytest.fixture(scope="module")
def shown(lstm: PageData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page_of(lstm))
    return path


def test_commands_in_texts_are_code_and_nothing_hides_a_box(shown: Path, tmp_path: Path) -> None:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium")
    with Browser(program, tmp_path) as browser:
        browser.open(shown)
        assert "`" not in browser.run("document.getElementById('advice').textContent")
        top = "document.querySelector('#graph-view').getBoundingClientRect().top"
        tools = "document.querySelector('.tools').getBoundingClientRect().bottom"
        assert browser.run(f"{tools} <= {top} + 1")
        # Labels of the roofline come after its points, which would hide them.
        last = "document.querySelector('#roofline-view svg').lastElementChild"
        assert browser.run(f"{last}.classList.contains('strong')")
        assert browser.errors == []


@pytest.mark.parametrize(("kernels", "words"), [(50.0, "between them"), (150.0, "measuring adds")])
def test_the_times_of_the_summary_agree(
    kernels: float, words: str, lstm: PageData, tmp_path: Path
) -> None:
    """Kernels that took longer than a run leave no time between them."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium")
    head = replace(
        lstm.head, total_us=100.0, least_total_us=95.0, kernels_us=kernels, outside_us=9.0
    )
    path = tmp_path / "page.html"
    path.write_text(page_of(replace(lstm, head=head)))
    with Browser(program, tmp_path / "profile") as browser:
        browser.open(path)
        text = browser.run("document.getElementById('summary').textContent")
    assert words in text
    # 100 us is neither 59 nor 150: the page says so, with all three numbers.
    assert "Something else was running" in text and "the fastest run took 95.0 µs" in text
