"""pool.ll is compiled from the current pool.c and its headers, and is packaged."""

from __future__ import annotations

import configparser
import re
import shutil
from pathlib import Path

import pytest

from tools.thread_pool_code import CODE, SOURCE, code_of, heading, sources_of
from tvm_hybrid.runtime.thread_pool import native


def test_the_code_names_its_source() -> None:
    first = CODE.read_text(encoding="utf-8").splitlines(keepends=True)[0]
    assert first == heading(SOURCE), "run `python -m tools.thread_pool_code`"
    assert native.CODE == CODE


def test_it_can_be_made_anew(tmp_path: Path) -> None:
    clang = shutil.which("clang-19") or shutil.which("clang")
    if clang is None:
        pytest.skip("clang makes it")
    for path in sources_of(SOURCE):
        shutil.copy(path, tmp_path)
    made = code_of(tmp_path / SOURCE.name, clang)
    assert made.startswith(heading(SOURCE))
    assert re.search(r"^define .*i32 @__tvm_ffi_addresses\(", made, re.M)


def test_a_changed_header_makes_the_code_old(tmp_path: Path) -> None:
    for path in sources_of(SOURCE):
        shutil.copy(path, tmp_path)
    copied = tmp_path / SOURCE.name
    assert heading(copied) == heading(SOURCE)
    header = sources_of(copied)[-1]
    header.write_text(header.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")
    assert heading(copied) != heading(SOURCE)


def test_all_come_along() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[4] / "setup.cfg")
    listed = setup["options.package_data"]["tvm_hybrid.runtime.thread_pool"]
    assert listed.split(", ") == [SOURCE.name, "*.h", CODE.name]
