"""Kernel snapshots are equal for equal code, and show how a kernel differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from microkernels.isa import target_isa
from tools.kernel_snapshot.__main__ import main
from tools.kernel_snapshot.kernels import (
    LEVELS,
    PROGRAMS,
    Kernel,
    Snapshot,
    differences,
    ordered,
    path_of,
    read,
    write,
)
from tvm_hybrid.targets.resolve import resolve_target

PROGRAM, LEVEL = "onnx_gru_31_auto", "avx512"
CHOICE = ("--programs", PROGRAM, "--levels", LEVEL, "--jobs", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one program's saved kernels."""
    folder = tmp_path_factory.mktemp("snapshot")
    result = CliRunner().invoke(main, ["save", str(folder), *CHOICE])
    assert result.exit_code == 0, result.output
    return folder


def test_the_corpus_has_what_it_should() -> None:
    onnx = {each.model for each in PROGRAMS.values() if each.source == "onnx"}
    torch = {each.model for each in PROGRAMS.values() if each.source == "torch"}
    assert len(onnx) >= 12
    assert len(torch) >= 4
    kinds = {each.kind for each in PROGRAMS.values()}
    assert kinds == {"auto", "bf16", "float32", "bfloat16"}
    assert {"onnx_minilm_qdq_auto", "onnx_minilm_qdq_auto_dynamic"} < set(PROGRAMS)
    assert all(target_isa(resolve_target(cpu, None)).name == level for level, cpu in LEVELS.items())


def test_the_same_code_makes_equal_kernels(folder: Path) -> None:
    saved = read(path_of(folder, PROGRAM, LEVEL))
    assert "zmm" in saved.kernels["tvm_hybrid_recurrent"].code
    assert "T.prim_func" in saved.kernels["tvm_hybrid_recurrent"].tir
    result = CliRunner().invoke(main, ["compare", str(folder), *CHOICE])
    assert result.exit_code == 0, result.output
    assert "1 programs: equal" in result.output


def test_a_kernel_that_differs_is_shown(folder: Path, tmp_path: Path) -> None:
    saved = read(path_of(folder, PROGRAM, LEVEL))
    kernels = {name: each for name, each in saved.kernels.items() if "softmax" not in name}
    other = kernels["tvm_hybrid_recurrent"]
    kernels["tvm_hybrid_recurrent"] = Kernel(other.tir, other.code.replace("vmulps", "vsubps"))
    kernels["tvm_hybrid_gone"] = other
    write(Snapshot(saved.versions, kernels), path_of(tmp_path, PROGRAM, LEVEL))
    result = CliRunner().invoke(main, ["compare", str(tmp_path), *CHOICE])
    assert result.exit_code == 1
    place = f"{PROGRAM}, {LEVEL}, tvm_hybrid_"
    assert f"{place}gone:\ngone\n" in result.output
    assert f"{place}softmax:\nnew\n" in result.output
    assert f"{place}recurrent:\n--- code before\n+++ code after\n" in result.output
    assert "-vsubps" in result.output
    assert "+vmulps" in result.output
    assert "3 kernels differ in 1 programs" in result.output


def test_tir_that_differs_is_shown_before_code() -> None:
    before = Snapshot(("0", 0), {"a": Kernel("x = 1", "one"), "b": Kernel("y", "")})
    after = Snapshot(("0", 0), {"a": Kernel("x = 2", "two"), "b": Kernel("y", "")})
    assert differences(before, after) == {
        "a": "--- tir before\n+++ tir after\n@@ -1 +1 @@\n-x = 1\n+x = 2"
    }


def test_numbering_of_sizes_is_no_difference() -> None:
    text = """{first} = TypeVar("{first}")
{second} = TypeVar("{second}")
@T.prim_func
def gather(x: T.Buffer(({first}, 3), edges={second}), places: T.Buffer(({third},))):
    pass
"""
    one = ordered(text.format(first="edges", second="edges_1", third="edges"))
    assert one == ordered(text.format(first="edges_1", second="edges", third="edges_1"))
    assert one != ordered(text.format(first="edges_1", second="edges", third="edges"))


def test_another_compiler_is_refused(folder: Path, tmp_path: Path) -> None:
    saved = read(path_of(folder, PROGRAM, LEVEL))
    write(Snapshot(("0.1", 1), saved.kernels), path_of(tmp_path, PROGRAM, LEVEL))
    result = CliRunner().invoke(main, ["compare", str(tmp_path), *CHOICE])
    assert result.exit_code == 1
    assert "saved with TVM and LLVM ('0.1', 1)" in result.output


def test_missing_damaged_and_unknown_inputs_are_named(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["compare", str(tmp_path), *CHOICE])
    assert result.exit_code == 1
    assert f"there is no {path_of(tmp_path, PROGRAM, LEVEL)}" in result.output
    result = CliRunner().invoke(main, ["compare", str(folder), "--levels", "avx3"])
    assert result.exit_code == 2
    assert "no avx3; there are avx2" in result.output
    path = path_of(tmp_path, PROGRAM, LEVEL)
    path.write_bytes(path_of(folder, PROGRAM, LEVEL).read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        read(path)
    result = CliRunner().invoke(main, ["compare", str(tmp_path), *CHOICE])
    assert result.exit_code == 1
    assert "is damaged" in result.output
