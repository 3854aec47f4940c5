"""Passes do not see match casts, and the result has them in the right place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_hybrid
from relay_passes.canonicalize.functions import isolate_casts
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

HASWELL = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((4, 3), "float32")) -> R.Tensor(ndim=2, dtype="float32"):
        n = T.int64()
        with R.dataflow():
            positive = R.nn.relu(x)
            found = R.nonzero(positive)
            known = R.match_cast(found, R.Tensor((2, n), "int64"))
            numbers = R.astype(R.permute_dims(known), "float32")
            product = R.matmul(numbers, R.const(np.array([[10, 1], [1, 0]], "float32")))
            result = R.nn.relu(product)
            R.output(result)
        return result


@I.ir_module
class After:
    @R.function
    def main(x: R.Tensor((4, 3), "float32")) -> R.Tensor(ndim=2, dtype="float32"):
        n = T.int64()
        with R.dataflow():
            positive = R.nn.relu(x)
            found = R.nonzero(positive)
            R.output(found)
        known = R.match_cast(found, R.Tensor((2, n), "int64"))
        with R.dataflow():
            transposed = R.permute_dims(known)
            numbers = R.astype(transposed, "float32")
            product = R.matmul(numbers, R.const(np.array([[10, 1], [1, 0]], "float32")))
            result = R.nn.relu(product)
            R.output(result)
        return result


@I.ir_module
class Static:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        with R.dataflow():
            raised = R.exp(x)
            known = R.match_cast(raised, R.Tensor((2, 3), "float32"))
            result = R.add(known, raised)
            R.output(result)
        return result


@I.ir_module
class Wrong:
    @R.function
    def main(x: R.Tensor((4, 3), "float32")) -> R.Tensor((2, 5), "int64"):
        with R.dataflow():
            found = R.nonzero(x)
            known = R.match_cast(found, R.Tensor((2, 5), "int64"))
            result = R.add(known, known)
            R.output(result)
        return result


def isolated(mod: IRModule) -> IRModule:
    return isolate_casts()(mod)


def machine(mod: IRModule) -> Any:
    """The module compiled by the registered pipeline."""
    executable = tvm.compile(mod, HASWELL, relax_pipeline="tvm_hybrid")
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def test_a_cast_stands_between_blocks() -> None:
    tvm.ir.assert_structural_equal(isolated(Before), isolated(After))
    assert [type(block) for block in isolated(Before)["main"].body.blocks] == [
        relax.DataflowBlock,
        relax.BindingBlock,
        relax.DataflowBlock,
    ]


def test_what_is_known_to_hold_goes() -> None:
    (block,) = isolated(Static)["main"].body.blocks
    assert not any(isinstance(binding, relax.MatchCast) for binding in block.bindings)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    result = tvm_hybrid.compile(Static, num_threads=1, records=[]).run(x)[0].numpy()
    np.testing.assert_allclose(result, 2 * np.exp(x), rtol=2e-7)  # exp: 0.91 ulp


def test_a_shape_that_depends_on_data() -> None:
    run = machine(Before)
    for count in (5, 0, 12):
        x = -np.ones(12, np.float32)
        x[:count] = 1
        x = x.reshape(4, 3)
        rows, columns = np.nonzero(x > 0)
        result = run(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(result, np.stack([10 * rows + columns, rows], axis=1))


def test_a_shape_that_does_not_hold_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        machine(Wrong)(tvm.runtime.tensor(np.ones((4, 3), np.float32)))


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_non_max_suppression(threshold: float) -> None:
    model = OnnxBuilder()
    boxes, scores = model.input("boxes", (1, 6, 4)), model.input("scores", (1, 1, 6))
    limits = (np.array([3]), np.array([0.5], "f"), np.array([threshold], "f"))
    chosen = model.node("NonMaxSuppression", boxes, scores, *map(model.constant, limits))
    model.output(chosen, ("n", 3), np.int64)
    proto = model.model()
    starts = np.array([0, 0.1, -0.1, 10, 10.1, 100], np.float32)
    zero, one = np.zeros(6, np.float32), np.ones(6, np.float32)
    feeds = {
        "boxes": np.stack([zero, starts, one, starts + 1], axis=1)[None],
        "scores": np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3]]], np.float32),
    }
    (expected,) = literal_session(proto).run(None, feeds)
    (result,) = tvm_hybrid.InferenceSession(proto, num_threads=1).run(None, feeds)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
