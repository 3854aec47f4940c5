"""Models of TVM's importer with dynamic shapes or control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_hybrid
from microkernels.base.errors import BY_ZERO
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

from .test_pipeline import ATOL, RTOL, compiled

Feeds = dict[str, NDArray[Any]]
RANDOM = np.random.default_rng(5)
WEIGHT = RANDOM.uniform(-1, 1, (8, 24)).astype(np.float32)


def info(name: str, shape: list[int | str], dtype: Any = np.float32) -> onnx.ValueInfoProto:
    """Declares an input or output."""
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    **constants: Any,
) -> onnx.ModelProto:
    """Builds a model of opset 16."""
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def check(made: onnx.ModelProto, *runs: Feeds) -> None:
    """One program gives ONNX Runtime's results for every feed."""
    session = literal_session(made)
    main = relax.VirtualMachine(compiled(from_onnx(made)), tvm.cpu())["main"]
    for feeds in runs:
        found = main(*(tvm.runtime.tensor(value) for value in feeds.values()))
        found = [found] if len(made.graph.output) == 1 else list(found)
        for value, wanted in zip(found, session.run(None, feeds), strict=True):
            assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(value.numpy(), wanted, RTOL, ATOL)


def floats(*shape: int) -> NDArray[Any]:
    """float32 values in [-2, 2]."""
    return RANDOM.uniform(-2, 2, shape).astype(np.float32)


def test_a_product_with_a_dynamic_number_of_rows() -> None:
    """Rows split into heads, as in attention."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["positive"]),
        helper.make_node("Reshape", ["positive", "target"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["y"], perm=[1, 0, 2]),
    ]
    made = model(
        nodes, [info("x", ["n", 8])], [info("y", [3, "n", 8])],
        w=WEIGHT, target=np.array([-1, 3, 8]),
    )  # fmt: skip
    check(made, *({"x": floats(rows, 8)} for rows in (1, 5, 17)))


def test_repeats_that_are_an_input() -> None:
    node = helper.make_node("Tile", ["x", "repeats"], ["y"])
    inputs = [info("x", [4, 6]), info("repeats", [2], np.int64)]
    x = floats(4, 6)
    runs: list[Feeds] = [{"x": x, "repeats": np.array(counts)} for counts in ([2, 1], [1, 3])]
    check(model([node], inputs, [info("y", ["a", "b"])]), *runs)


def test_a_condition_chooses_between_products() -> None:
    """One program takes either branch; its condition is computed."""

    def branch(op: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], [f"{op}/product"]),
            helper.make_node(op, [f"{op}/product"], [f"{op}/y"]),
        ]
        return helper.make_graph(nodes, op, [], [info(f"{op}/y", [5, 24])])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branch("Sigmoid"), else_branch=branch("Neg")
        ),
    ]
    made = model(nodes, [info("x", [5, 8])], [info("y", [5, 24])], w=WEIGHT, zero=np.float32(0))
    x = np.abs(floats(5, 8))
    check(made, {"x": x}, {"x": -x})


def test_sizes_that_are_data() -> None:
    """Indices of nonzero elements, and the rows that a condition selects."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Compress", ["x", "kept"], ["rows"], axis=0),
    ]
    inputs = [info("x", [4, 6]), info("kept", [4], bool)]
    outputs = [info("places", [2, "k"], np.int64), info("rows", ["r", 6])]
    made = model(nodes, inputs, outputs)
    x = floats(4, 6)
    x[x < 0] = 0
    check(
        made,
        {"x": x, "kept": np.array([True, False, True, True])},
        {"x": np.eye(4, 6, dtype=np.float32), "kept": np.array([False, False, True, False])},
    )


@pytest.mark.parametrize("keep", [0, 1])
def test_sequences_within_a_model(keep: int) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1, keepdims=keep),
        helper.make_node("SequenceAt", ["parts", "place"], ["y"]),
    ]
    made = model(
        nodes, [info("x", [3, 4])], [info("y", [3, 1] if keep else [3])], place=np.array(2)
    )
    check(made, {"x": floats(3, 4)})


def _slice_model() -> onnx.ModelProto:
    """A slice of two axes, the first dynamic, with all bounds as inputs."""
    bounds = ["starts", "ends", "axes", "steps"]
    return model(
        [helper.make_node("Slice", ["x", *bounds], ["y"])],
        [info("x", ["n", 6]), *(info(name, [2], np.int64) for name in bounds)],
        [info("y", ["a", "b"])],
    )


def _slice_feeds(*bounds: tuple[int, int]) -> Feeds:
    starts, ends, steps = (np.array(each, np.int64) for each in bounds)
    axes = np.array([1, -2])
    return {"x": floats(4, 6), "starts": starts, "ends": ends, "axes": axes, "steps": steps}


def test_a_slice_between_bounds_that_are_inputs() -> None:
    """Slices forwards, backwards, to nothing, and by the largest possible steps."""
    least, most = -(2**63), 2**63 - 1
    check(
        _slice_model(),
        _slice_feeds((1, 0), (6, 4), (2, 3)),
        _slice_feeds((5, 3), (-100, -100), (-2, -1)),
        _slice_feeds((3, 0), (1, 3), (1, -1)),
        _slice_feeds((least, most), (most, least), (1, -2)),
        _slice_feeds((1, 3), (6, -9), (most, least)),
    )


@pytest.mark.parametrize("steps", [(0, 1), (1, 0)])
def test_a_slice_by_steps_of_0_is_an_error(steps: tuple[int, int]) -> None:
    main = relax.VirtualMachine(compiled(from_onnx(_slice_model())), tvm.cpu())["main"]
    feeds = _slice_feeds((0, 0), (6, 4), steps)
    with pytest.raises(RuntimeError, match="specified constant"):
        main(*(tvm.runtime.tensor(value) for value in feeds.values()))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_size_divided_by_a_size_of_0_is_an_error(op: str) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["n"]),
        helper.make_node("Gather", ["sizes", "second"], ["m"]),
        helper.make_node(op, ["n", "m"], ["size"]),
        helper.make_node("Unsqueeze", ["size", "axes"], ["target"]),
        helper.make_node("Expand", ["one", "target"], ["y"]),
    ]
    made = model(
        nodes, [info("x", ["n", "m"])], [info("y", ["k"])],
        first=0, second=1, axes=np.array([0]), one=np.ones(1, np.float32),
    )  # fmt: skip
    check(made, {"x": floats(7, 3)}, {"x": floats(0, 3)})
    target = tvm_hybrid.resolve_target(None)
    program = tvm.compile(from_onnx(made), target, relax_pipeline="tvm_hybrid")
    main = relax.VirtualMachine(program, tvm.cpu())["main"]
    with pytest.raises(ValueError, match=BY_ZERO):
        main(tvm.runtime.tensor(floats(7, 0)))
