"""The site's page Architecture, and the list of rooms, agree with the code."""

import ast
from pathlib import Path

import pytest

from tools.architecture import FLOORS, ROOT, Room, listing, page, read_rooms


@pytest.fixture(scope="module")
def rooms() -> dict[str, Room]:
    return read_rooms()


def test_every_folder_is_on_the_page_and_in_the_list(rooms: dict[str, Room]) -> None:
    text, lines = page(rooms), listing(rooms).splitlines()
    folders = [path for floor in FLOORS for path in (ROOT / floor).iterdir()]
    folders = [path for path in folders if (path / "__init__.py").is_file()]
    assert len(folders) > 40
    for folder in folders:
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert docstring
        name, first = f"{folder.relative_to(ROOT)}", docstring.splitlines()[0]
        assert f"\n### {name}\n\n{first}" in text, name
        assert f"| [{folder.name}](#{name.replace('/', '')}) | {first} | " in text, name
        assert [name, first] in [line.split(maxsplit=1) for line in lines], name
    assert [line.split()[0] for line in lines if "/" not in line.split()[0]] == [*FLOORS]


def test_every_room_says_what_comes_in_and_what_goes_out(rooms: dict[str, Room]) -> None:
    silent = [
        name
        for name, room in rooms.items()
        if name.split(".")[0] != "tvm_hybrid" and "." in name
        for text in (room.text, *room.folders.values())
        if "\nIn: " not in text or " Out: " not in text.replace("\n", " ")
    ]
    assert not silent


def test_imports_of_every_form_are_seen(tmp_path: Path) -> None:
    files = {
        "tir_schedules/core/config.py": "",
        "tir_schedules/core/deep/__init__.py": '"""Deep."""\nfrom ..config import x\n',
        "tir_schedules/rows/a.py": "def f():\n    from ..core import config\n",
        "tir_schedules/rows/b.py": "from . import a\nfrom .a import f\nimport os.path\n",
        "relay_passes/pipeline.py": "import tir_schedules.rows.a\nfrom .ir import graph\n",
        "relay_passes/ir/graph.py": "from .. import pipeline\nfrom tir_schedules.top import x\n",
        "tir_schedules/top.py": "",
    }
    folders = {*FLOORS, "tir_schedules/core", "tir_schedules/rows", "relay_passes/ir"}
    files |= {f"{folder}/__init__.py": f'"""{folder}."""' for folder in folders}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    rooms = read_rooms(tmp_path)
    assert {name: room.uses for name, room in rooms.items() if room.uses} == {
        "tir_schedules.rows": {"tir_schedules.core"},
        "relay_passes": {"tir_schedules.rows", "relay_passes.ir"},
        "relay_passes.ir": {"relay_passes", "tir_schedules"},
    }
    assert rooms["tir_schedules.core"].folders == {"deep": "Deep."}
    text = page(rooms)
    assert "| [rows](#tir_schedulesrows) | tir_schedules/rows. | `core` |\n" in text
    assert "Imports from: `relay_passes`, `tir_schedules`. Imported by: `relay_passes`." in text
