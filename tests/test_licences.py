"""NOTICE lists other authors' files, each with a licence that is shipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.licences import files, license_files, notice, unknown_origin, unlisted

ROOT = Path(__file__).resolve().parents[1]


def test_every_file_of_others_has_a_licence_that_is_shipped() -> None:
    shipped = license_files(ROOT)
    assert {"LICENSE", "NOTICE"} <= set(shipped)
    listed = notice(ROOT)
    assert listed
    for each in listed:
        assert list(ROOT.glob(each.pattern)), f"NOTICE names {each.pattern}, which does not exist"
        assert each.origin.startswith("https://") and each.license_id
        assert each.license_file in shipped, f"setup.cfg does not ship {each.license_file}"
        assert len((ROOT / each.license_file).read_text()) > 500
    # Every shipped licence applies to some file.
    texts = {name for name in shipped if name.startswith("licenses/")}
    assert texts == {each.license_file for each in listed}


def test_every_file_has_a_known_origin() -> None:
    assert len(list(files(ROOT))) > 500
    assert unknown_origin(ROOT) == [], "list them in NOTICE, or in tests/licences.py as ours"


def test_files_that_look_foreign_are_listed() -> None:
    assert unlisted(ROOT) == []


@pytest.mark.parametrize(
    "name, text",
    [
        ("tvm_hybrid/report/page/static/chart.min.js", "x" * 3000),
        ("tvm_hybrid/report/page/static/chart.js", "/*! @license MIT */ let a = 1;"),
        ("tvm_hybrid/report/chart.py", "# Copyright (c) 2020 Somebody"),
        ("microkernels/machines/measurements/b.jsonl", '{"source": "somewhere, BSD-3"}'),
    ],
)
def test_a_new_file_of_others_is_found(name: str, text: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "NOTICE", tmp_path / "NOTICE")
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert unlisted(tmp_path) == [name]


def test_a_new_kind_of_file_is_found(tmp_path: Path) -> None:
    shutil.copy(ROOT / "NOTICE", tmp_path / "NOTICE")
    path = tmp_path / "tvm_hybrid" / "demo" / "photo.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xd8")
    assert unknown_origin(tmp_path) == ["tvm_hybrid/demo/photo.jpg"]
