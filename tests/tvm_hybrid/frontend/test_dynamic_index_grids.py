"""Indices that count along dynamic axes: a gather becomes a view or a slice without a lookup."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tvm import relax

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.expressions import writing_to
from tvm_hybrid.frontend.onnx.graph.elements import index_grid

SIZES = [(1, 1), (2, 3), (3, 1), (1, 5), (2, 0)]


def size_of(build: OnnxBuilder, name: str, axis: int) -> str:
    """One size of a tensor, as a scalar."""
    shape = build.node("Shape", name)
    return build.node("Gather", shape, build.constant(np.array(axis), np.int64))


def count_to(build: OnnxBuilder, size: str, start: int = 0, step: int = 1) -> str:
    first, by = (build.constant(np.array(number), np.int64) for number in (start, step))
    return build.node("Range", first, size, by)


def masked(start: int = 0, step: int = 1, turned: bool = False) -> onnx.ModelProto:
    """mask [batch, seq] gathered as [batch, 1, 1, seq] by indices batch * seq + position."""
    build = OnnxBuilder()
    mask = build.input("mask", ["batch", "seq"])
    batch, seq = (size_of(build, mask, axis) for axis in (0, 1))
    outer = build.node(
        "Unsqueeze", count_to(build, batch), build.constant(np.array([1, 2, 3]), np.int64)
    )
    inner = count_to(build, seq, start, step)
    places = build.node("Add", build.node("Mul", outer, batch if turned else seq), inner)
    flat = build.node("Reshape", mask, build.constant(np.array([-1, 1]), np.int64))
    build.output(build.node("Gather", flat, places, axis=0), None)
    return build.model()


def positions(extent: int = 8, first: int = 0) -> onnx.ModelProto:
    """Adds to x the rows of a table at the first indices of [[0, 1, 2, ..., 5]]."""
    build = OnnxBuilder()
    x = build.input("x", ["batch", "seq", 4])
    numbers = build.constant(np.arange(first, first + 6)[None], np.int64)
    bounds = [build.constant(np.array([number]), np.int64) for number in (0, 1)]
    end = build.node("Unsqueeze", size_of(build, x, 1), bounds[0])
    shown = build.node("Slice", numbers, bounds[0], end, bounds[1])
    table = build.constant(np.random.default_rng(0).standard_normal((extent, 4)), np.float32)
    build.output(build.node("Add", x, build.node("Gather", table, shown, axis=0)), None)
    return build.model()


def looks_up(model: onnx.ModelProto) -> bool:
    text = str(import_onnx(model, keep_dynamic=True))
    return "cls.gather" in text or "R.take" in text


def check(model: onnx.ModelProto, sizes: list[tuple[int, int]]) -> InferenceSession:
    """Checks that one program gives ONNX Runtime's results."""
    session, peer = InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    (item,) = model.graph.input
    inner = [dim.dim_value for dim in item.type.tensor_type.shape.dim[2:]]
    assert item.type.tensor_type.elem_type == TensorProto.FLOAT
    for batch, seq in sizes:
        rng = np.random.default_rng(batch)
        feeds = {item.name: rng.standard_normal((batch, seq, *inner)).astype(np.float32)}
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_array_equal(found, wanted)
    return session


def test_numbers_of_all_elements_are_a_view() -> None:
    model = masked()
    assert not looks_up(model)
    check(model, SIZES)


@pytest.mark.parametrize("model", [masked(start=1), masked(step=2), masked(turned=True)])
def test_other_numbers_are_looked_up(model: onnx.ModelProto) -> None:
    assert looks_up(model)
    check(model, [(2, 2), (2, 5), (1, 4)])


@pytest.mark.parametrize("first", [0, 2])
def test_positions_are_a_slice_of_a_table(first: int) -> None:
    model = positions(first=first)
    assert not looks_up(model)
    session = check(model, SIZES)
    with pytest.raises(FeedError, match="at most 6"):
        session.run(None, {"x": np.zeros((1, 7, 4), np.float32)})


def test_positions_that_may_be_outside_of_the_table_are_looked_up() -> None:
    model = positions(extent=5)
    assert looks_up(model)
    check(model, [(1, 5), (2, 3)])


def test_nothing_is_known_of_indices_whose_shape_is_not() -> None:
    indices = relax.Var("indices", relax.TensorType(dtype="int64", ndim=2))
    builder = relax.BlockBuilder()
    with writing_to(builder), builder.function("main", [indices]):
        assert index_grid(indices) is None
        builder.emit_func_output(indices)
