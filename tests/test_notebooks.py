"""Notebooks are stored with outputs and pictures, name the CPU, and contain nothing private."""

from __future__ import annotations

import ast
import base64
import re
import struct
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

import tvm_hybrid
from tests.conftest import NOTEBOOKS_FOR, TORCH_NOTEBOOKS

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
HELPERS = sorted(FOLDER.glob("*.py"))
LIBRARIES = {"matplotlib", "numpy", "onnx", "torch", "tvm", *(path.stem for path in HELPERS)}
# Internal modules that docs/extending/microkernels.md names for authors of microkernels.
EXTENDING = {
    "microkernel": {
        "microkernels.isa",
        "microkernels.microkernel",
        "microkernels.registry",
        "microkernels.tensorize.tensor_intrin",
    }
}
LARGEST = 300_000  # bytes
OF_A_MACHINE = re.compile(r"/(?:root|home|work|tmp|usr|opt|var|private)/|site-packages")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_of(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def texts_of(output: Any) -> list[str]:
    """The parts of an output that a reader sees, without pictures."""
    data = output.get("data", {})
    texts = [text for kind, text in data.items() if not kind.startswith("image/png")]
    return [*texts, output.get("text", "")]


def forbidden(source: str, allowed: set[str]) -> list[str]:
    """Imports and names of `tvm_hybrid` that are neither public nor allowed."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
            if node.module == "tvm_hybrid":
                names = [f"tvm_hybrid.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tvm_hybrid":
            names = [f"tvm_hybrid.{node.attr}"]
        for name in names:
            package, _, rest = name.partition(".")
            public = package == "tvm_hybrid" and (not rest or rest in tvm_hybrid.__all__)
            known = package in LIBRARIES or package in sys.stdlib_module_names
            if not (public or known or name in allowed):
                found.append(name)
    return found


def test_there_are_ten_notebooks() -> None:
    assert len(NOTEBOOKS) == 10
    assert {path.name for path in NOTEBOOKS} >= TORCH_NOTEBOOKS | NOTEBOOKS_FOR.keys()
    page = (FOLDER / "README.md").read_text()
    site = (FOLDER.parent / "mkdocs.yml").read_text()
    for path in NOTEBOOKS:
        assert f"]({path.name})" in page and f"notebooks/{path.name}" in site


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path: Path) -> None:
    """`python -m tools.notebooks NAME` stores them."""
    cells = code_of(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    streams = [output.name for output in outputs if output.output_type == "stream"]
    assert set(streams) == {"stdout"}
    first = "".join(text for output in cells[0].outputs for text in texts_of(output))
    assert re.search(r"CPU: \S.*, code for \S+", first)
    assert path.stat().st_size < LARGEST


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_stored(path: Path) -> None:
    pictures = [
        output.data["image/png"]
        for cell in code_of(path)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    for picture in pictures:
        width, height = struct.unpack(">II", base64.b64decode(picture)[16:24])
        assert width > 300 and height > 100


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_say_nothing_of_a_machine(path: Path) -> None:
    for cell in code_of(path):
        for output in cell.outputs:
            for text in texts_of(output):
                assert not OF_A_MACHINE.search(text), text
                assert "\x1b" not in text


@pytest.mark.parametrize("path", [*NOTEBOOKS, *HELPERS], ids=lambda path: path.stem)
def test_imports_are_public(path: Path) -> None:
    allowed = EXTENDING.get(path.stem, set())
    if path.suffix == ".py":
        sources = [path.read_text()]
    else:
        sources = [cell.source for cell in code_of(path)]
    assert not [name for source in sources for name in forbidden(source, allowed)]


def test_private_imports_are_found() -> None:
    source = (
        "import tvm_hybrid.demo\nfrom tvm_hybrid import tune, demo\nfrom relay_passes import x\n"
    )
    found = forbidden(source + "tvm_hybrid.report.x\ntvm_hybrid.tune\nimport json", set())
    assert found == ["tvm_hybrid.demo", "tvm_hybrid.demo", "relay_passes", "tvm_hybrid.report"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_folders_are_removed(path: Path) -> None:
    code = "\n".join(cell.source for cell in code_of(path))
    assert code.count("TemporaryDirectory(") == code.count("folder.cleanup()")
    assert "mkdtemp" not in code
    title = read(path).cells[0]
    assert title.cell_type == "markdown" and title.source.startswith("# ")
