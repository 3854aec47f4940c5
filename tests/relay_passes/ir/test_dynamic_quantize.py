"""The chain of dynamic quantisation: what it computes, and which chains are recognised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from numpy.typing import ArrayLike, NDArray
from tvm import relax

from relay_passes.ir.dynamic_quantize import (
    DynamicQuantize,
    emit_dynamic_quantize,
    emit_dynamic_range,
    match_dynamic_quantize,
)
from relay_passes.ir.graph import DataflowGraph, op_name
from tests.onnx_reference.arithmetic import dynamic_quantize
from tests.relay_passes.graphs import run

Quantize = Callable[[NDArray[np.float32]], list[NDArray]]


def chain(*shape: int) -> tvm.IRModule:
    """main(x) -> q, scale, zero point."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            outputs = [builder.emit_output(v) for v in emit_dynamic_quantize(builder, x)]
        builder.emit_func_output(relax.Tuple(outputs))
    return relax.transform.CanonicalizeBindings()(builder.get())


def matches(mod: tvm.IRModule) -> list[DynamicQuantize]:
    """The chains recognised in main's first block."""
    graph = DataflowGraph(mod["main"].body.blocks[0])
    found = [match_dynamic_quantize(graph, position) for position in range(len(graph.bindings))]
    return [match for match in found if match is not None]


def by_definition(x: NDArray[np.float32]) -> tuple[NDArray, NDArray, NDArray]:
    """ONNX's formulas, every operation rounded to float32; all zero as in ONNX Runtime."""
    high, low = np.maximum(x.max(), np.float32(0)), np.minimum(x.min(), np.float32(0))
    scale = (high - low) / np.float32(255) or np.float32(1)
    zero_point = np.clip(np.rint(-low / scale), 0, 255)
    q = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    return q.astype(np.uint8), np.asarray(scale), zero_point.astype(np.uint8)


@pytest.fixture(scope="module")
def quantize() -> Quantize:
    """The function main of the chain for 8 numbers, compiled once."""
    executable = tvm.compile(chain(8), tvm.target.Target("llvm"))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda x: [item.numpy() for item in main(tvm.runtime.tensor(x))]


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(8),
        -np.zeros(8),
        np.full(8, 3.0),
        np.full(8, -3.0),
        [0, 0, 0, 0, 0, 0, 0, 1e-45],
        [-253, 257, 1, 3, 5, -1, -3, 0],  # scale 2, -low / scale = 126.5: a tie, to even
        [-255, 255, 1, 3, 5, -1, -3, 0],  # 127.5
        [-1e38, 1e38, 1, 3, 5, -1, -3, 0],
    ],
    ids=str,
)
def test_values(quantize: Quantize, values: ArrayLike) -> None:
    x = np.asarray(values, np.float32)
    for got, wanted in zip(quantize(x), by_definition(x), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_array_equal(got, wanted)


def test_random_values(quantize: Quantize) -> None:
    rng = np.random.default_rng(11)
    for _ in range(500):
        x = (rng.standard_normal(8) * 10.0 ** rng.integers(-6, 6) + rng.normal()).astype(np.float32)
        for got, wanted in zip(quantize(x), by_definition(x), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_the_chain_is_recognised() -> None:
    mod = chain(3, 5)
    (match,) = matches(mod)
    bindings = mod["main"].body.blocks[0].bindings
    assert match.x.same_as(mod["main"].params[0])
    assert set(match.positions) == set(range(len(bindings)))
    made = [bindings[position] for position in match.positions]
    assert made[-1].var.same_as(match.q) and op_name(made[-1].value) == "relax.quantize"
    assert [str(v.ty.dtype) for v in (match.q, match.scale, match.zero_point)] == [
        "uint8", "float32", "uint8"
    ]  # fmt: skip


def test_the_chain_with_a_least_scale_is_recognised() -> None:
    """The match and the region's attributes have the smallest scale."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scale, zero = emit_dynamic_range(builder, x, 0.25)
            q = relax.op.quantize(x, scale, zero, axis=-1, out_dtype="uint8")
            outputs = [builder.emit_output(each) for each in (q, scale, zero)]
        builder.emit_func_output(relax.Tuple(outputs))
    mod = relax.transform.CanonicalizeBindings()(builder.get())
    (match,) = matches(mod)
    assert match.least == 0.25 and match.attributes == {"least_scale": 0.25}
    assert matches(chain(8))[0].attributes == {}
    for factor in (0, 1, 100):
        values = factor * np.arange(-3, 5, dtype=np.float32)
        for got, wanted in zip(run(mod, [values]), dynamic_quantize(values, 0.25), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_common_chain_is_recognised_for_both_users() -> None:
    """Two operators that quantise one tensor leave one chain after clean-up."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            pair = [emit_dynamic_quantize(builder, x)[0] for _ in range(2)]
            out = builder.emit_output(relax.op.concat(pair, axis=0))
        builder.emit_func_output(out)
    mod = relax.transform.CanonicalizeBindings()(builder.get())
    assert len(matches(mod)) == 2
    assert len(matches(relax.transform.EliminateCommonSubexpr()(mod))) == 1


def other_chain(change: str) -> tvm.IRModule:
    """A chain that differs from the canonical one in one place."""
    op = relax.op
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((4,), "float32")) for name in "xy")
    const = relax.const
    with builder.function("main", [x, y]):
        with builder.dataflow():
            zero = const(0.0, "float32")
            high = builder.emit(op.maximum(zero, op.max(y if change == "source" else x)))
            low_of = op.min(x, axis=[0]) if change == "axis" else op.min(x)
            bound = const(-1.0, "float32") if change == "bound" else zero
            low = builder.emit(op.minimum(bound, low_of))
            extent = builder.emit(op.subtract(high, low))
            levels = const(127.0 if change == "levels" else 255.0, "float32")
            step = builder.emit(op.divide(extent, levels))
            scale = builder.emit(op.where(op.equal(step, zero), const(1.0, "float32"), step))
            start = high if change == "start" else low
            zp = builder.emit(
                op.quantize(op.negative(start), scale, const(0, "uint8"), -1, "uint8")
            )
            q = op.quantize(y if change == "target" else x, scale, zp, -1, "uint8")
            out = builder.emit_output(q)
        builder.emit_func_output(out)
    return relax.transform.CanonicalizeBindings()(builder.get())


@pytest.mark.parametrize(
    "change", ["source", "axis", "bound", "levels", "start", "target", "nothing"]
)
def test_other_chains_are_left(change: str) -> None:
    assert len(matches(other_chain(change))) == (change == "nothing")


def test_a_plain_quantize_is_left() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            zero_point = relax.const(3, "uint8")
            call = relax.op.quantize(x, relax.const(0.5, "float32"), zero_point, 0, "uint8")
            out = builder.emit_output(call)
        builder.emit_func_output(out)
    assert matches(builder.get()) == []


def test_large_tensors() -> None:
    x = np.random.default_rng(3).standard_normal((3, 17, 65)).astype(np.float32)
    for got, wanted in zip(run(chain(*x.shape), [x]), by_definition(x), strict=True):
        np.testing.assert_array_equal(got, wanted)
