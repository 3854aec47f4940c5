"""Modules of `relax.transform.BundleModelParams`: all weights are one parameter, a tuple."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.relay_passes.graphs import module
from tvm_hybrid.frontend.model_input import with_single_parameters

SHAPES = [(6, 33), (70, 33), (70,)]


def linear(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return op.nn.relu(op.add(op.matmul(x, op.permute_dims(w)), b))


@pytest.fixture(scope="module")
def bundled() -> IRModule:
    mod = module(linear, *[(shape, "float32") for shape in SHAPES])
    mod = IRModule({"main": mod["main"].with_attr("num_input", 1)})
    made = relax.transform.BundleModelParams()(mod)
    assert len(made["main"].params) == 2
    return made


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def check(found: np.ndarray, arrays: list[np.ndarray]) -> None:
    x, w, b = arrays
    np.testing.assert_allclose(found, np.maximum(x @ w.T + b, 0), atol=1e-4)


def run(library: Any, arrays: list[np.ndarray]) -> np.ndarray:
    x, *weights = map(tvm.runtime.tensor, arrays)
    return relax.VirtualMachine(library, tvm.cpu())["main"](x, weights).numpy()


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((4,), "float32"),
        params: R.Tuple(R.Tensor((4,), "float32"), R.Tensor((1,), "float32")),
    ) -> R.Tensor((4,), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            w = params[1]
            gv = R.multiply(x, w)
            R.output(gv)
        return gv


@I.ir_module
class After:
    @R.function
    def main(
        x: R.Tensor((4,), "float32"),
        params_0: R.Tensor((4,), "float32"),
        params_1: R.Tensor((1,), "float32"),
    ) -> R.Tensor((4,), "float32"):
        R.func_attr({"num_input": 1})
        params = (params_0, params_1)  # noqa: F841
        with R.dataflow():
            w = params_1
            gv = R.multiply(x, w)
            R.output(gv)
        return gv


def test_single_parameters() -> None:
    assert_structural_equal(with_single_parameters(Before), After)
    assert with_single_parameters(After) is After


def test_compile_takes_each_weight(bundled: IRModule, arrays: list[np.ndarray]) -> None:
    executable = tvm_hybrid.compile(bundled, num_threads=1)
    assert [each.name for each in executable.inputs] == ["x0", "model_params_0", "model_params_1"]
    assert [each.op for each in executable.explain()] == ["batch_matmul + add + relu"]
    check(executable.run(*arrays)[0].numpy(), arrays)


def test_the_named_pipeline_takes_the_tuple(bundled: IRModule, arrays: list[np.ndarray]) -> None:
    decisions: list[Decision] = []
    pipeline = relax.get_pipeline("tvm_hybrid", decisions=decisions, num_threads=1)
    library = tvm.compile(bundled, tvm_hybrid.resolve_target(None), relax_pipeline=pipeline)
    assert [each.op for each in decisions] == ["batch_matmul + add + relu"]
    check(run(library, arrays), arrays)


def test_its_items_are_weights(bundled: IRModule, arrays: list[np.ndarray]) -> None:
    decisions: list[Decision] = []
    parts = tvm_hybrid.partition_for_tvm_hybrid(bundled, transform_params=True, decisions=decisions)
    assert [each.op for each in decisions if each.taken] == ["matmul + add + relu"]
    generated = relax.transform.RunCodegen()(parts)
    library = tvm.compile(generated, tvm_hybrid.resolve_target(None))
    machine = relax.VirtualMachine(library, tvm.cpu())
    x, *weights = map(tvm.runtime.tensor, arrays)
    packed = machine["main_transform_params"]([weights])  # one parameter, a tuple
    check(machine["main"](x, *packed).numpy(), arrays)
