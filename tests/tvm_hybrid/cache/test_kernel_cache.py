"""The kernel cache: what the next program compiles, and how the folder changes.

"Compiled" kernels are those that TVM builds for the cache: tests count these builds.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tvm import tirx

import tvm_hybrid
from relay_passes.lower import native_code
from relay_passes.lower.codegen import PLACEHOLDER
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import ROOT
from tvm_hybrid.cache import kernel_cache, program_key
from tvm_hybrid.cli.machine import examine
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.session.inference_session import InferenceSession

LONG = 120  # seconds until a test that hangs fails
ROWS = 6
X = np.random.default_rng(0).standard_normal((ROWS, 16)).astype(np.float32)
FIRST, HEAD = (16, 24, 40, 8), (16, 24, 40, 9)  # the second has another last layer


@pytest.fixture
def folder(caches: Path) -> Path:
    """The kernel folder, which does not exist yet."""
    return caches / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tirx.PrimFunc]:
    """The kernels that were compiled for the cache."""
    found: list[tirx.PrimFunc] = []
    build = native_code.built

    def counted(kernel: tirx.PrimFunc, *rest: Any) -> Any:
        found.append(kernel)
        return build(kernel, *rest)

    monkeypatch.setattr(native_code, "built", counted)
    return found


def layers(sizes: Sequence[int] = FIRST, rows: int | str = ROWS) -> onnx.ModelProto:
    """x[rows, sizes[0]] -> tanh of chained products with a weight for each pair of sizes."""
    build = OnnxBuilder()
    rng = np.random.default_rng(1)
    value = build.input("x", [rows, sizes[0]])
    for k, n in itertools.pairwise(sizes):
        weight = rng.standard_normal((k, n)) / np.sqrt(k)
        value = build.node("Tanh", build.node("MatMul", value, build.constant(weight, np.float32)))
    build.output(value, [rows, sizes[-1]])
    return build.model()


def made(sizes: Sequence[int] = FIRST, rows: int | str = ROWS, **options: Any) -> Executable:
    given = {"num_threads": 1, "fusion": "fine", "keep_dynamic": True, **options}
    return tvm_hybrid.compile(layers(sizes, rows), **given)


def result(executable: Executable) -> np.ndarray:
    return executable.run({"x": X})[0].numpy()


def kernels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel"))


def test_another_head_compiles_only_that(
    folder: Path, compiled: list[tirx.PrimFunc], caplog: pytest.LogCaptureFixture
) -> None:
    first = made()
    assert len(compiled) == len(kernels(folder)) == len(FIRST) - 1
    compiled.clear()
    other = made(HEAD)
    assert [list(map(int, kernel.params[-1].shape)) for kernel in compiled] == [[ROWS, HEAD[-1]]]
    assert "kernels: 2 from the cache, 1 compiled, 1 kept" in caplog.text
    compiled.clear()
    again = made()
    assert not compiled
    for executable, sizes in ((first, FIRST), (other, HEAD), (again, FIRST)):
        wanted = made(sizes, cache=False)
        np.testing.assert_array_equal(result(executable), result(wanted))
        assert str(executable.explain()) == str(wanted.explain())


@pytest.mark.parametrize("rows", [ROWS, "n"])
def test_a_program_of_kept_kernels_can_do_all(
    rows: int | str, folder: Path, compiled: list[tirx.PrimFunc], tmp_path: Path
) -> None:
    """Cached kernels get threads and memory through pointers that TVM's runtime fills in."""
    options = {"rows": rows, "num_threads": 2}
    wanted = result(made(cache=False, **options))
    made(**options)
    compiled.clear()
    executable = made(**options)
    assert not compiled
    np.testing.assert_array_equal(result(executable), wanted)
    modules = list(executable.program().module.imports)
    assembly = "".join(module.inspect_source("asm") for module in modules)
    names = {decision.function for decision in executable.explain() if decision.function}
    assert names and all(f"{name}.entry:" in assembly for name in names)
    assert {module.kind for module in modules} == {"llvm"} and PLACEHOLDER not in assembly
    loaded = tvm_hybrid.load(executable.export(tmp_path / "kept.so"))
    np.testing.assert_array_equal(result(loaded), wanted)
    assert str(loaded.explain()) == str(executable.explain())


def test_what_makes_other_code_is_another_kernel(
    folder: Path, compiled: list[tirx.PrimFunc], monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    for options in (
        {"num_threads": 2},
        {"target": "tvm_hybrid/haswell"},
        {"target": "tvm_hybrid/haswell", "num_threads": 2},
        {"precision": "bf16"},
        {"rows": "n"},
        {"fusion": "coarse"},
    ):
        before = len(kernels(folder))
        compiled.clear()
        made(**options)
        assert compiled and len(kernels(folder)) == before + len(compiled), options
    compiled.clear()
    versions = {**kernel_cache.package_versions(), "apache-tvm": "0.0"}
    monkeypatch.setattr(kernel_cache, "package_versions", lambda: versions)
    made()
    assert len(compiled) == len(FIRST) - 1


def test_a_fallback_has_kernels_of_its_own(folder: Path, compiled: list[tirx.PrimFunc]) -> None:
    options = {"target": "tvm_hybrid/haswell", "fallback": "x86-64"}
    wanted = made(**options)
    assert len(compiled) == 2 * (len(FIRST) - 1)
    compiled.clear()
    assert str(made(**options).explain()) == str(wanted.explain())
    assert not compiled


@pytest.mark.parametrize("damage", ["half", "nothing", "byte", "foreign"])
def test_a_damaged_kernel_is_compiled_anew(
    damage: str, folder: Path, compiled: list[tirx.PrimFunc], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = result(made())
    path = kernels(folder)[1]
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    cases = {"half": data[: len(data) // 2], "byte": flipped, "foreign": b"#!/bin/sh"}
    path.write_bytes(cases.get(damage, b""))
    compiled.clear()
    np.testing.assert_array_equal(result(made()), wanted)
    assert len(compiled) == 1
    warnings = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert len(warnings) == 1 and "compiled anew" in warnings[0].getMessage()
    assert path.read_bytes() == data
    made()
    assert len(compiled) == 1


def test_a_kernel_of_another_form_is_compiled_anew(
    folder: Path, compiled: list[tirx.PrimFunc]
) -> None:
    """The checksum is right, as with a file that another program wrote."""
    wanted = result(made())
    for path in kernels(folder):
        content = b'{"text": 1}'
        path.write_bytes(hashlib.sha256(content).digest() + content)
    compiled.clear()
    np.testing.assert_array_equal(result(made()), wanted)
    assert len(compiled) == len(FIRST) - 1


def test_kernels_of_another_user_are_not_used(
    folder: Path,
    compiled: list[tirx.PrimFunc],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = result(made())
    compiled.clear()
    fstat = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        numbers = list(fstat(descriptor))
        numbers[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(numbers)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", of_another)
        again = made()
    assert len(compiled) == len(FIRST) - 1
    assert "belongs to somebody else" in caplog.text
    np.testing.assert_array_equal(result(again), wanted)


def test_what_was_used_longest_ago_goes_first(
    folder: Path, compiled: list[tirx.PrimFunc], monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    for path in kernels(folder):
        os.utime(path, (1000, 1000))
    old = {path.name for path in kernels(folder)}
    made((16, 24, 50))  # uses the first layer
    used = {path.name for path in kernels(folder) if path.stat().st_mtime > 1000} & old
    assert len(used) == 1
    draft = folder / ".tvm_hybrid_killed"
    draft.write_bytes(b"half")
    os.utime(draft, (1000, 1000))
    size = sum(path.stat().st_size for path in kernels(folder))
    monkeypatch.setenv("TVM_HYBRID_CACHE_BYTES", str(16 * size))
    made((16, 8))  # smaller than the unused kernels
    left = {path.name for path in kernels(folder)}
    assert used <= left and not old <= left and not draft.exists()
    assert sum(path.stat().st_size for path in kernels(folder)) <= size
    monkeypatch.setenv("TVM_HYBRID_CACHE_BYTES", "16000")
    compiled.clear()
    made((16, 26))
    assert compiled and {path.name for path in kernels(folder)} == left


@pytest.mark.parametrize("off", ["argument", "session", "variable", "sources"])
def test_the_cache_can_be_left_alone(
    off: str, folder: Path, compiled: list[tirx.PrimFunc], monkeypatch: pytest.MonkeyPatch
) -> None:
    if off == "variable":
        monkeypatch.setenv("TVM_HYBRID_CACHE", "0")
    if off == "sources":
        monkeypatch.setattr(program_key, "_IMPORTED", 0)
    if off == "session":
        InferenceSession(layers(), num_threads=1, cache=False)
    else:
        made(cache=off != "argument")
    assert not compiled and not folder.exists()


def test_a_folder_that_cannot_be_written_fails_nothing(
    folder: Path, compiled: list[tirx.PrimFunc], caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.write_text("a file")
    executable = made(num_threads=2)
    assert "kernels are not kept for other programs" in caplog.text
    np.testing.assert_array_equal(result(executable), result(made(num_threads=2, cache=False)))


_BOTH = """
import sys
from tests.tvm_hybrid.cache.test_kernel_cache import made, result
sys.stdin.readline()
print(result(made()).tobytes().hex())
"""


def test_two_processes_at_once_keep_the_same_kernels(
    folder: Path, compiled: list[tirx.PrimFunc]
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _BOTH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for _ in range(2)
    ]
    said = [process.communicate("\n", LONG) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    own = made()
    assert not compiled  # keys do not depend on the process
    assert {out.strip() for out, _ in said} == {result(own).tobytes().hex()}
    assert len(kernels(folder)) == len(FIRST) - 1 and not list(folder.glob(".tvm_hybrid_*"))


def test_doctor_counts_them(folder: Path) -> None:
    def line() -> str:
        (fact,) = [fact for fact in examine() if fact.name == "compiled kernels"]
        return str(fact.value)

    assert line() == "0, 0.0 MB"
    made()
    size = sum(path.stat().st_size for path in kernels(folder))
    assert line() == f"{len(FIRST) - 1}, {size / 1e6:.1f} MB"
