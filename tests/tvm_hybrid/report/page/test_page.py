"""The page's data is right, and the file loads nothing else and escapes every name."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import tvm_hybrid
from microkernels.isa import host_isa
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tests.tvm_hybrid.report.page.hostile import MARKUP, NAME, ROOF, hostile_page
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid.cli import main
from tvm_hybrid.errors import IsaError, OutputError
from tvm_hybrid.report.kernel_speed import Cache
from tvm_hybrid.report.page import collect
from tvm_hybrid.report.page.data import PageData, page_of

pytestmark = pytest.mark.turns


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PageData:
    return hostile_page(tmp_path_factory.mktemp("hostile"))


class Elements(HTMLParser):
    """Collects names, attributes and text of a page's elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = f"{tag} {dict(attrs).get('type', '')}".strip()

    def handle_data(self, data: str) -> None:
        self.texts[self._open] = self.texts.get(self._open, "") + data
        self._open = ""


def test_regions_have_operators_kernels_tensors_and_times(data: PageData) -> None:
    product, sums, last = data.regions
    assert (product.op, product.parts) == ("matmul + relu", [["matmul", "relu"]])
    assert product.taken and product.kernel and product.config and product.source == "default"
    assert product.reasons[0] == "template matmul"
    assert [tensor.kind for tensor in product.reads] == ["input", "weight"]
    assert product.reads[0].name and product.reads[0].text == "float32[8x16]"
    assert [tensor.text for tensor in product.writes] == ["float32[8x32]"]
    assert not sums.taken and data.left == [sums.number]
    assert last.op == "matmul"
    assert product.work.flops == 2 * 8 * 16 * 32
    assert product.work.nbytes == 4 * 8 * 16 + product.reads[1].nbytes + 4 * 8 * 32
    assert all(region.work.us for region in data.regions)
    assert sum(region.work.share or 0 for region in data.regions) == pytest.approx(1)


def test_the_roof_gives_the_least_time_and_the_bound(data: PageData) -> None:
    work = data.regions[0].work
    computing, moving = work.flops / 100.0 / 1e3, work.nbytes / 20.0 / 1e3
    assert work.moving_us == pytest.approx(moving) and work.place == "memory"
    assert work.least_us == pytest.approx(max(computing, moving))
    assert work.bound == ("compute" if computing > moving else "memory")
    assert work.us and work.gflops == pytest.approx(work.flops / work.us / 1e3)
    assert work.of_peak == pytest.approx((work.gflops or 0) / 100.0)


def test_data_in_caches_move_faster(tmp_path: Path) -> None:
    """The cache that fits all tensors serves weights; the one that fits the others serves those."""
    executable = tvm_hybrid.compile(saved(tmp_path, two_layers(4)), num_threads=1)
    weights = executable.outline.weights if executable.outline else 0
    near = Cache("L2", weights - 1, 200.0), Cache("L3", weights + (1 << 20), 50.0)
    page = collect.collect(executable, model="m", roof=replace(ROOF, caches=near), repeat=2)
    (work, reads) = next((each.work, each.reads) for each in page.regions if each.work.flops)
    fixed = sum(tensor.nbytes for tensor in reads if tensor.kind == "weight")
    assert fixed > 0
    moving = fixed / 50.0 / 1e3 + (work.nbytes - fixed) / 200.0 / 1e3
    assert work.moving_us == pytest.approx(moving) and work.place == "L3"


def test_head_and_memory(data: PageData) -> None:
    assert data.head.model == NAME and data.head.threads == 1 and not data.head.unmeasured
    assert data.head.total_us and data.head.least_total_us
    assert data.head.least_total_us <= data.head.total_us
    assert data.memory.model_file and data.memory.weights >= 4 * (16 * 32 + 32 * 8)
    assert data.memory.inputs == 4 * 8 * 16 and data.memory.outputs == 4 * 8 * 8
    # Two values of 8 x 32 are alive between the kernels; the result is a block, too.
    assert data.memory.values == 2 * 4 * 8 * 32
    assert data.memory.planned is not None and data.memory.peak is not None
    assert 2 * 4 * 8 * 32 <= data.memory.peak <= data.memory.planned


def test_the_picture_follows_the_data(data: PageData) -> None:
    assert data.picture is not None
    boxes = data.picture.boxes
    assert [box.kind for box in boxes] == ["input", "region", "left", "region", "output"]
    assert [(edge.source, edge.target) for edge in data.picture.edges] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    assert data.picture.edges[0].text == "float32[8x16]"


def test_advice_names_what_is_left(data: PageData) -> None:
    titles = [advice.title for advice in data.advice]
    assert "Operators without a template" in titles
    assert titles[-1] == "No tuning records"
    assert ("Products of 8 bits" in titles) == host_isa().multiplies_bytes


def test_the_file_holds_the_data_and_loads_nothing(data: PageData) -> None:
    page = page_of(data)
    elements = Elements(page)
    embedded = json.loads(elements.texts["script application/json"])
    assert embedded == json.loads(msgspec.json.encode(data))
    loads = [
        attributes
        for _, attributes in elements.found
        if any(name in attributes for name in ("src", "srcset", "action", "onerror", "onload"))
    ]
    assert loads == []
    links = [attributes["href"] for _, attributes in elements.found if attributes.get("href")]
    assert links == ["data:,", "#kernels"]
    assert set(re.findall(r"url\([^)]*\)", page)) == {"url(#arrow)"}
    assert "@import" not in page and "fetch(" not in page


def test_names_are_no_markup(data: PageData) -> None:
    page = page_of(data)
    assert MARKUP not in page and "<img" not in page
    assert MARKUP in json.dumps(msgspec.to_builtins(data))  # present as data
    assert page.count("<script") == 2


def test_only_the_pages_own_script_may_run(data: PageData) -> None:
    page = page_of(data)
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found = re.search(r"script-src ([^;]*);", page)
    assert found is not None and found[1] == f"'sha256-{digest}'"


def test_a_page_of_a_library_is_as_that_of_the_model(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(two_layers(), num_threads=1)
    library = executable.export(tmp_path / "m.so")
    data = collect.collect(tvm_hybrid.load(library), repeat=1, roof=ROOF)
    of_model = collect.collect(executable, repeat=1, roof=ROOF)
    assert data.picture == of_model.picture is not None
    assert data.memory == of_model.memory and data.memory.planned
    for mine, other in zip(data.regions, of_model.regions, strict=True):
        assert replace(mine, work=other.work) == other and mine.origins
        assert mine.work.us and mine.work.nbytes == other.work.nbytes


def test_a_page_of_an_older_library_has_kernels_and_no_graph(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(4), num_threads=1)
    executable.outline = None
    library = executable.export(tmp_path / "m.so")
    data = collect.collect(tvm_hybrid.load(library), model=str(library), repeat=1, roof=ROOF)
    assert data.picture is None
    assert [region.op for region in data.regions] == ["matmul + add + relu"]
    assert data.regions[0].work.us and data.memory.weights >= 0


def test_dynamic_sizes_are_not_counted() -> None:
    executable = tvm_hybrid.compile(two_layers("rows"), num_threads=1, keep_dynamic=True)
    data = collect.collect(executable, {"x": np.ones((3, 8), np.float32)}, repeat=1, roof=ROOF)
    assert all(region.work.us for region in data.regions)
    assert not any(region.work.flops or region.work.nbytes for region in data.regions)
    assert data.regions[0].reads[0].text == "float32[rowsx8]"
    assert data.memory.planned is None
    assert "Sizes are dynamic" in [advice.title for advice in data.advice]


def test_a_program_for_another_cpu_has_a_page_without_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise IsaError("it needs AMX")

    monkeypatch.setattr(collect, "require_host", refuse)
    data = collect.collect(tvm_hybrid.compile(mlp_module(4), num_threads=1), repeat=1)
    assert data.head.total_us is None and data.head.unmeasured == "it needs AMX"
    assert data.limits is None and data.regions[0].work.us is None
    assert data.regions[0].work.flops and data.picture is not None
    assert "it needs AMX" in page_of(data)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "measure_roof", lambda *_: ROOF)
    model, page = saved(tmp_path), tmp_path / "report.html"
    assert main(["report", str(model), "-o", str(page), "--threads", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    written = json.loads(Elements(page.read_text()).texts["script application/json"])
    assert shown == written
    assert [region["op"] for region in shown["regions"]]
    assert shown["limits"]["peaks"] == ROOF.peaks
    assert shown["head"]["others_us"] == {}
    assert main(["report", str(model), "-o", str(page), "--beside", "--json"]) == 0
    others = json.loads(capsys.readouterr().out)["head"]["others_us"]
    assert list(others) == ["tvm_hybrid", "ONNX Runtime"] and min(others.values()) > 0
    assert main(["report", str(model)]) == 2
    assert "report.html" in capsys.readouterr().err


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(4), num_threads=1)
    with pytest.raises(OutputError, match="folder does not exist"):
        executable.report(tmp_path / "none" / "report.html")
    assert list(tmp_path.iterdir()) == []
