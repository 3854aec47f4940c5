"""A target with only AVX2 and FMA is level avx2, and its code has no F16C instruction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

import tvm_hybrid
from microkernels.isa import isa_named, target_isa
from tests.relay_passes.graphs import module
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tvm_hybrid.targets.cpu_features import required_features

PLAIN: dict[str, Any] = {"kind": "llvm", "mattr": ["+avx2", "+fma"]}
CONVERSIONS = ("vcvtph2ps", "vcvtps2ph")
X = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float16)
# The product of a row and a power of two is exact.
WEIGHT = np.float32(0.5) * np.eye(16, dtype=np.float32)


def halves() -> IRModule:
    """x[5, 16] -> float32(x) @ WEIGHT, a region, and a float16 sum, a fallback."""

    def body(x: relax.Expr) -> relax.Expr:
        product = relax.op.matmul(relax.op.astype(x, "float32"), relax.const(WEIGHT))
        sums = relax.op.cumsum(product, axis=0, dtype="float32")
        return relax.op.astype(sums, "float16")

    return module(body, (X.shape, "float16"))


def test_the_level_asks_for_what_kernels_use() -> None:
    target = tvm_hybrid.resolve_target(PLAIN)
    assert target_isa(target) is isa_named("avx2")
    assert not {"f16c", "avx512f"} & set(required_features(target))
    # LLVM may use F16C if the target has it; such code then requires it.
    assert "f16c" in required_features(tvm_hybrid.resolve_target("haswell"))


def code(target: Any) -> str:
    named = tvm_hybrid.resolve_target(target)
    executable = tvm.compile(halves(), named, relax_pipeline="tvm_hybrid")
    return "".join(each.inspect_source("asm") for each in executable.mod.imports)


def test_only_targets_that_have_it_convert_by_instruction() -> None:
    plain, haswell = code(PLAIN), code("haswell")
    assert "vfmadd" in plain and not [name for name in CONVERSIONS if name in plain]
    assert all(name in haswell for name in CONVERSIONS)


@pytest.mark.isa("avx2")
def test_it_runs_on_the_runtime_alone(tmp_path: Path) -> None:
    wanted = np.cumsum(X.astype(np.float32) @ WEIGHT, axis=0)
    executable = tvm_hybrid.compile(halves(), target=PLAIN, num_threads=1)
    assert [each.kernel for each in executable.explain().taken] == ["avx2_f32_6x16"]
    (result,) = executable.run(X)
    # One rounding of sums of at most five numbers below 2.
    np.testing.assert_allclose(result.numpy(), wanted, rtol=0, atol=10 * 2.0**-11)
    named = tvm_hybrid.resolve_target(PLAIN)
    stock = tvm.compile(halves(), named, relax_pipeline="tvm_hybrid")
    executable.export(tmp_path / "own.so")
    stock.export_library(str(tmp_path / "stock.so"))
    for name in ("own.so", "stock.so"):
        done = run_on_runtime_alone(tmp_path / name, X, tmp_path)
        assert done.stdout.split("\n")[:2] == ["[]", "False"], done.stderr
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), result.numpy())
