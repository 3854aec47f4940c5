"""That pool.ll is made of pool.c as it is now, and comes along with the package."""

from __future__ import annotations

import configparser
import shutil
from pathlib import Path

import pytest

from tools.thread_pool_code import CODE, SOURCE, code_of, heading
from tvm_hybrid.thread_pool import native


def test_the_code_names_its_source() -> None:
    first = CODE.read_text(encoding="utf-8").splitlines(keepends=True)[0]
    assert first == heading(SOURCE.read_bytes()), "run `python -m tools.thread_pool_code`"
    assert native.CODE == CODE


def test_it_can_be_made_anew(tmp_path: Path) -> None:
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang makes it")
    source = tmp_path / SOURCE.name
    source.write_bytes(SOURCE.read_bytes())
    made = code_of(source, clang)
    assert made.startswith(heading(SOURCE.read_bytes()))
    assert "define i32 @__tvm_ffi_addresses(" in made


def test_both_come_along() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    listed = setup["options.package_data"]["tvm_hybrid.thread_pool"]
    assert listed.split(", ") == [SOURCE.name, CODE.name]
