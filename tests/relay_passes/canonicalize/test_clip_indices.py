"""Indices out of range never read or write memory of other tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.canonicalize.indices import clip_indices
from tests.relay_passes.graphs import GENERIC


@I.ir_module
class Before:
    @R.function
    def main(table: R.Tensor((5, 2), "float32"), ids: R.Tensor((3,), "int64")):
        with R.dataflow():
            gv = R.take(table, ids, axis=0, mode="fast")
            R.output(gv)
        return gv


@I.ir_module
class After:
    @R.function
    def main(table: R.Tensor((5, 2), "float32"), ids: R.Tensor((3,), "int64")):
        with R.dataflow():
            from_end: R.Tensor((3,), "int64") = R.add(ids, R.const(5, "int64"))
            below: R.Tensor((3,), "bool") = R.less(ids, R.const(0, "int64"))
            counted: R.Tensor((3,), "int64") = R.where(below, from_end, ids)
            gv = R.take(table, counted, axis=0, mode="clip")
            R.output(gv)
        return gv


@I.ir_module
class Dynamic:
    @R.function
    def main(table: R.Tensor(("n", 2), "float32"), ids: R.Tensor((3,), "int64")):
        with R.dataflow():
            gv = R.take(table, ids, axis=0, mode="fast")
            R.output(gv)
        return gv


def test_fast_becomes_clip() -> None:
    assert_structural_equal(clip_indices()(Before), After)
    assert_structural_equal(clip_indices()(After), After)


def test_the_remainder_where_the_extent_is_not_known() -> None:
    call = clip_indices()(Dynamic)["main"].body.blocks[0].bindings[0].value
    assert call.attrs.mode == "wrap"


def test_an_index_far_outside_reads_the_last_row() -> None:
    executable = tvm.compile(clip_indices()(Before), target=GENERIC)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    ids = np.array([0, -1, 1 << 40])
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    result = main(tvm.runtime.tensor(table), tvm.runtime.tensor(ids)).numpy()
    np.testing.assert_array_equal(result, table[[0, 4, 4]])


def run(
    call: Callable[..., relax.Expr], *arrays: NDArray, sizes: list[Any] | None = None
) -> NDArray:
    """Runs a call on the arrays, compiled with the pass and TVM's own pipeline.

    `sizes` replaces the shape of the first parameter.
    """
    shapes = [sizes or arrays[0].shape, *(array.shape for array in arrays[1:])]
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, str(array.dtype)))
        for i, (shape, array) in enumerate(zip(shapes, arrays, strict=True))
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(call(*params))
        builder.emit_func_output(result)
    executable = tvm.compile(clip_indices()(builder.get()), target=GENERIC)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return main(*map(tvm.runtime.tensor, arrays)).numpy()


DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FAR = 1 << 40


@pytest.mark.parametrize(("position", "meant"), [(-1, 2), (-3, 0), (-4, 0), (1, 1), (FAR, 2)])
def test_a_constant_index_becomes_the_one_that_is_meant(position: int, meant: int) -> None:
    """PyTorch's x[:, -1] arrives in this form."""
    index = relax.const(tvm.runtime.tensor(np.array(position, np.int64)))
    got = run(lambda x: relax.op.take(x, index, axis=1, mode="fast"), DATA)
    np.testing.assert_array_equal(got, DATA[:, meant])


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_take_counts_from_the_end(dtype: str) -> None:
    """An index below 0 counts from the end, also on an axis of 200, which int8 cannot hold."""
    table = np.arange(400, dtype=np.float32).reshape(200, 2)
    ids = np.array([0, 100, -1, -100, 127]).astype(dtype)
    got = run(lambda x, i: relax.op.take(x, i, axis=0, mode="fast"), table, ids)
    np.testing.assert_array_equal(got, table[np.minimum(ids.astype(np.int64), 199)])


def test_reading_operators_stay_inside() -> None:
    i = np.array([[-1, -1], [0, 1], [FAR, -FAR]])
    got = run(lambda x, i: relax.op.gather_nd(x, i, 0), DATA, i)
    np.testing.assert_array_equal(got, DATA[[1, 0, 1], [2, 1, 0]])
    got = run(lambda x, i: relax.op.gather_nd(x, i, 1), DATA, np.array([[-1, -2], [FAR, -FAR]]))
    np.testing.assert_array_equal(got, DATA[[0, 1], [2, 2], [2, 0]])
    i = np.array([-1, 0, FAR])
    got = run(lambda x, i: relax.op.index_tensor(x, [i, i]), DATA, i)
    np.testing.assert_array_equal(got, DATA[[1, 0, 1], [2, 0, 2]])
    i = np.array([[-4, FAR, -FAR, 3]])
    got = run(lambda x, i: relax.op.gather_elements(x, i, 1), DATA[0, :1], i)
    np.testing.assert_array_equal(got, DATA[0, :1, [0, 3, 0, 3]].T)


def run_dynamic(call: Callable[..., relax.Expr], *arrays: NDArray) -> NDArray:
    """Like `run`, with a dynamic shape for the first parameter."""
    sizes = [tvm.tirx.Var(f"n{axis}", "int64") for axis in range(arrays[0].ndim)]
    return run(call, *arrays, sizes=sizes)


@pytest.mark.parametrize("compute", [run, run_dynamic])
def test_writing_operators_stay_inside(compute: Callable[..., NDArray]) -> None:
    data, updates = np.zeros((2, 3), np.float32), np.array([1, 2, 3], np.float32)
    wanted = np.array([[3, 0, 0], [0, 2, 1]], np.float32)
    i = np.array([[-1, -1], [1, 1], [-FAR, -FAR]])
    got = compute(lambda x, i, u: relax.op.scatter_nd(x, i, u), data, i, updates)
    np.testing.assert_array_equal(got, wanted)
    pair = i[:, 0].copy(), i[:, 1].copy()
    got = compute(lambda x, i, j, u: relax.op.index_put(x, (i, j), u), data, *pair, updates)
    np.testing.assert_array_equal(got, wanted)
