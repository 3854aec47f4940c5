"""The four packages import only packages on their left; rooms of passes share only `ir`.

Folders of tests are the folders of their package.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tools.architecture import Room, read_imports, read_rooms

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid")
# Folders of tests that are no folder of a package.
NO_ROOMS = {"tvm_hybrid/pytorch/aten": "cases of test_aten_operators.py, one file for each family"}
# Tests outside of rooms, and the file at the package's top that each one tests.
TESTS_OF_TOP_FILES = {
    "microkernels/test_isa.py": "isa.py",
    "microkernels/test_microkernel_contract.py": "registry.py",
    "tir_schedules/test_many_threads.py": "__init__.py",  # every template of every room
    "relay_passes/test_failing_binding.py": "lower_module.py",
    "relay_passes/test_fusion_levels.py": "pipeline_options.py",
    "relay_passes/test_pipeline.py": "pipeline.py",
    "relay_passes/test_rule_documents.py": "pipeline.py",
    "relay_passes/test_rule_orders.py": "pipeline.py",
    "tvm_hybrid/test_api.py": "api.py",
    "tvm_hybrid/test_argument_errors.py": "errors.py",
    "tvm_hybrid/test_autoload.py": "_autoload.py",
    "tvm_hybrid/test_fast_math.py": "options.py",
    "tvm_hybrid/test_fusion.py": "options.py",
    "tvm_hybrid/test_moved.py": "_moved.py",
    "tvm_hybrid/test_options.py": "options.py",
    "tvm_hybrid/test_precision.py": "options.py",
    "tvm_hybrid/test_told_errors.py": "errors.py",
    "tvm_hybrid/test_version_check.py": "version_check.py",
}


@pytest.fixture(scope="module")
def all_rooms() -> dict[str, Room]:
    return read_rooms()


def imported_layers(source: str, package: str) -> set[str]:
    """The layers that a module's source imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [package if node.level else node.module or ""]
        found |= {name.split(".")[0] for name in names}
    return found & set(LAYERS)


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS)
def test_a_package_imports_only_from_its_left(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    wrong = {
        str(path.relative_to(ROOT)): sorted(beyond)
        for path in files
        if (beyond := imported_layers(path.read_text(), layer) - allowed)
    }
    assert not wrong


def test_imports_inside_functions_and_relative_ones_are_seen() -> None:
    source = (
        "def f():\n    import tvm_hybrid.api\nfrom . import isa\nfrom relay_passes import graph"
    )
    assert imported_layers(source, "microkernels") == {"tvm_hybrid", "microkernels", "relay_passes"}


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_every_folder_of_a_packages_tests_is_a_room() -> None:
    tests = ROOT / "tests"
    files = [path for layer in LAYERS for path in (tests / layer).rglob("*.py")]
    folders = {str(path.parent.relative_to(tests)) for path in files}
    assert len(folders) > 40
    assert {each for each in folders if not (ROOT / each).is_dir()} == NO_ROOMS.keys()


def test_only_tests_of_top_files_lie_outside_of_rooms() -> None:
    found = [path for layer in LAYERS for path in (ROOT / "tests" / layer).glob("test_*.py")]
    assert {f"{path.parent.name}/{path.name}" for path in found} == TESTS_OF_TOP_FILES.keys()
    for test, tested in TESTS_OF_TOP_FILES.items():
        assert (ROOT / test).with_name(tested).is_file(), test


def test_no_two_files_import_from_each_other() -> None:
    assert list(TopologicalSorter(read_imports()).static_order())  # fails with a circle's files


def test_no_two_rooms_import_from_each_other() -> None:
    rooms: dict[str, set[str]] = {}
    for module, imports in read_imports().items():
        room = room_of(module)
        rooms.setdefault(room, set()).update({room_of(name) for name in imports} - {room})
    assert len(rooms) > 40
    assert list(TopologicalSorter(rooms).static_order())  # fails with a circle's rooms


def room_of(module: str) -> str:
    """The room of a module; a file at the top of a floor counts as a room here."""
    return ".".join(module.split(".")[:2])


def test_rooms_of_passes_import_from_ir_alone(all_rooms: dict[str, Room]) -> None:
    rooms = {name: room for name, room in all_rooms.items() if name.startswith("relay_passes.")}
    assert "relay_passes.ir" in rooms
    for name, room in rooms.items():
        assert room.uses & (rooms.keys() - {name}) <= {"relay_passes.ir"}, name
