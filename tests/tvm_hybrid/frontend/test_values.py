"""Operators on values that TVM's importer does not define; kernels and folding agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_hybrid
from tvm_hybrid.errors import InputValueError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.importer import to_relax
from tvm_hybrid.frontend.onnx.reader.load_graph import load_graph

from .models import declared, f32, make_model, onnxruntime_run, random, run_imported

pytestmark = pytest.mark.turns

NEWEST = onnx.defs.onnx_opset_version()
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
POWERS = [2.0**bits + rest for bits in (7, 8, 15, 16, 31, 32, 63, 64) for rest in (-1, 0, 1)]
FLOATS = [0.0, 0.5, 0.99, 1.5, 2.5, 300.0, 3e9, 5e9, 9.3e18, 2e19, 1e30, np.inf, np.nan]
FLOATS = [sign * x for x in (*FLOATS, *POWERS) for sign in (1, -1)]


def run(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    """Runs a model through the whole compiler."""
    return tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).run(None, feeds)


def one(op: str, feeds: dict[str, NDArray], dtype: DTypeLike = None, opset: int = 17,
        **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """A model of one node on the feeds; its output is declared like the first feed."""
    first = next(iter(feeds.values()))
    output = first.astype(dtype or first.dtype)
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    inputs = [declared(name, array) for name, array in feeds.items()]
    model = make_model([node], inputs, [declared("y", output)], opset=opset)
    model.ir_version = onnx.IR_VERSION if opset == NEWEST else model.ir_version
    return model


def folded(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    """The constant results if all inputs are constant."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:]
    for name, array in feeds.items():
        copy.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    _, graph = to_relax(load_graph(copy))
    assert not graph.nodes
    return [graph.constants[name] for name in graph.outputs]


def casts(source: str, count: int, dtypes: tuple[str, ...]) -> onnx.ModelProto:
    """A model with one Cast to each type."""
    codes = [helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in dtypes]
    nodes = [helper.make_node("Cast", ["x"], [d], to=c) for d, c in zip(dtypes, codes, strict=True)]
    outputs = [(dtype, code, [count]) for dtype, code in zip(dtypes, codes, strict=True)]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(source))
    return make_model(nodes, [("x", code, [count])], outputs)


@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
def test_a_float_that_the_integer_type_cannot_hold(source: str) -> None:
    """ONNX Runtime's result in full vectors; its tail of uint32 differs."""
    dtypes = (*INTEGERS, "bool")
    with np.errstate(over="ignore"):
        values = np.array(FLOATS, source)
    vectors = casts(source, 64, dtypes)
    each = [onnxruntime_run(vectors, {"x": np.repeat(x, 64)}) for x in values]
    wanted = [np.stack(results)[:, 0] for results in zip(*each, strict=True)]
    feeds = {"x": np.repeat(values, 33)}  # each value in full vectors and in the tail
    model = casts(source, feeds["x"].size, dtypes)
    for results in (run(model, feeds), folded(model, feeds)):
        for dtype, got, exact in zip(dtypes, results, wanted, strict=True):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, np.repeat(exact, 33), err_msg=dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_cast_behind_a_product(dtype: str) -> None:
    """The cast runs in the product's kernel; there is no NaN, which the product would spread."""
    x = np.zeros((len(FLOATS), 4), np.float32)
    x[:, 0] = np.nan_to_num(FLOATS, nan=7.9, posinf=1e30, neginf=-1e30)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Cast", ["p"], ["y"], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
    ]
    constants = {"w": np.ones((4, 24), np.float32)}
    model = make_model(
        nodes, [f32("x", *x.shape)], [declared("y", np.empty((len(x), 24), dtype))], constants
    )
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    assert len(session.explain().taken) == 1
    (got,), (wanted,) = session.run(None, {"x": x}), onnxruntime_run(model, {"x": x})
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_by_more_than_there_are_bits(dtype: str, direction: str) -> None:
    limits = np.iinfo(dtype)
    bits = 8 * np.dtype(dtype).itemsize
    x = np.array([limits.min, limits.max, 5, limits.max - 3] * 9, dtype)
    shifts = [0, 1, bits - 1, bits, bits + 1, 127, *((-1, -bits) if limits.min else ())]
    amounts = np.resize(np.array(shifts).astype(dtype), x.shape)
    feeds = {"x": x, "s": amounts}
    model = one("BitShift", feeds, opset=NEWEST, direction=direction)
    wanted = []
    for value, amount in zip(x.tolist(), amounts.tolist(), strict=True):
        outside = not 0 <= amount < bits
        by = bits if outside else amount
        exact = value >> by if direction == "RIGHT" else 0 if outside else value << by
        wanted.append(exact % 2**bits)
    exact_bits = np.array(wanted, np.uint64).astype(f"uint{bits}").view(dtype)
    np.testing.assert_array_equal(run(model, feeds)[0], exact_bits)
    known = make_model(list(model.graph.node), [declared("x", x)], [declared("y", x)],
                       {"s": amounts}, NEWEST)  # fmt: skip
    known.ir_version = onnx.IR_VERSION
    np.testing.assert_array_equal(run(known, {"x": x})[0], exact_bits)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_remainders_of_floats(dtype: str) -> None:
    """fmod=0 has the divisor's sign, also for zeros, and fmod=1 the dividend's."""
    special = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 5.5, -5.5, 1e-3, np.inf, -np.inf, np.nan]
    x, y = (side.ravel().astype(dtype) for side in np.meshgrid(special, special))
    feeds = {"x": x, "d": y}
    for fmod, meaning in ((0, np.mod), (1, np.fmod)):
        model = one("Mod", feeds, fmod=fmod)
        with np.errstate(all="ignore"):
            wanted = meaning(x, y)
        for (got,) in (run(model, feeds), folded(model, feeds)):
            np.testing.assert_array_equal(got, wanted)
            known = ~np.isnan(wanted)
            np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(wanted)[known])


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_one_infinity_or_both(positive: int, negative: int) -> None:
    feeds = {"x": np.array([np.inf, -np.inf, np.nan, 1, -1] * 4, np.float32)}
    model = one("IsInf", feeds, bool, detect_positive=positive, detect_negative=negative)
    for got in (run(model, feeds), folded(model, feeds)):
        np.testing.assert_array_equal(got, onnxruntime_run(model, feeds))


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_integers(dtype: str, largest: int) -> None:
    x = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (3, 9), dtype, endpoint=True)
    x[0] = np.iinfo(dtype).max - np.arange(9).astype(dtype)
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1, largest=largest)
    outputs = [declared("v", x[:, :4]), declared("i", np.zeros((3, 4), np.int64))]
    model = make_model([node], [declared("x", x)], outputs, {"k": np.array([4])})
    for got, wanted in zip(run(model, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x}),
                           strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_largest_of_rows_with_nan(dtype: str) -> None:
    """NaN exceeds all numbers, both zeros are equal; the first of equal elements is selected."""
    row = [1.0, -0.0, np.nan, 0.0, -np.inf, np.inf, 1.0, -2.0, -np.nan, 5e-324, -1.0, -2.0]
    x = np.array([row, row[::-1]], dtype)
    nodes, outputs = [], []
    for largest in (0, 1):
        names = [f"v{largest}", f"i{largest}"]
        nodes.append(helper.make_node("TopK", ["x", "k"], names, largest=largest))
        outputs += [declared(names[0], x), declared(names[1], np.zeros(x.shape, np.int64))]
    model = make_model(nodes, [declared("x", x)], outputs, {"k": np.array([len(row)])})
    results = run(model, {"x": x})
    for got, wanted in zip(results, onnxruntime_run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(got, wanted)
    values, places = results[:2]
    np.testing.assert_array_equal(np.signbit(values), np.signbit(np.take_along_axis(x, places, 1)))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode: str) -> None:
    x = random(2, 3, 4, 6)
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
    model = make_model([node], [f32("x", *x.shape)], [f32("y", 2, 12, 2, 3)],
                       opset=NEWEST)  # fmt: skip
    model.ir_version = onnx.IR_VERSION
    np.testing.assert_array_equal(
        run(model, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})
    )


@pytest.mark.parametrize("value", ["x", "c"])
def test_training_is_refused(value: str) -> None:
    """The mode is an input or a constant, which must not be folded with a random mask."""
    nodes = [
        helper.make_node("Dropout", [value, "ratio", "training"], ["h"]),
        helper.make_node("Add", ["h", "x"], ["y"]),
    ]
    constants = {
        "ratio": np.array(0.5, np.float32), "training": np.array(True), "c": np.ones(4, np.float32)
    }  # fmt: skip
    model = make_model(nodes, [f32("x", 4)], [f32("y", 4)], constants)
    with pytest.raises(UnsupportedOperatorError, match="training mode"):
        import_onnx(model)


def test_training_mode_and_ratio_may_be_inputs() -> None:
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])
    inputs = [f32("x", 4), f32("ratio"), ("training", TensorProto.BOOL, [])]
    model = make_model([node], inputs, [f32("y", 4)])
    with pytest.raises(InputValueError, match="graph input 'training'"):
        import_onnx(model)
    with pytest.raises(InputValueError, match="graph input 'ratio'"):
        import_onnx(model, values={"training": True})
    with pytest.raises(UnsupportedOperatorError, match="training mode"):
        import_onnx(model, values={"training": True, "ratio": 0.5})
    x = random(4)
    for values in ({"training": False}, {"training": True, "ratio": 0.0}):
        imported = import_onnx(model, values=values)
        feeds = {info.name: np.float32(0.5) for info in imported.inputs} | {"x": x}
        np.testing.assert_array_equal(run_imported(imported, feeds)[0], x)


def test_cast_like_a_narrow_type_is_no_cast_to_eight_bits() -> None:
    nodes = [helper.make_node("CastLike", ["x", "like"], ["y"])]
    model = make_model(nodes, [f32("x", 2)], [("y", onnx.TensorProto.INT4, [2])], opset=21)
    model.ir_version = 10
    like = helper.make_tensor("like", onnx.TensorProto.INT4, [1], [3])
    model.graph.initializer.append(like)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    (got,) = run(model, {"x": np.array([3.7, 9], np.float32)})
    assert str(got.dtype) == "int4"
    assert got.astype(np.int8).tolist() == [3, -7]


def test_sign_of_every_integer_type() -> None:
    feeds, nodes = {}, []
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        feeds[dtype] = np.array([limits.min, 0, 1, 5, limits.max], dtype)
        nodes.append(helper.make_node("Sign", [dtype], [f"{dtype}_sign"]))
    inputs = [declared(name, array) for name, array in feeds.items()]
    outputs = [declared(f"{name}_sign", array) for name, array in feeds.items()]
    model = make_model(nodes, inputs, outputs)
    for results in (run(model, feeds), folded(model, feeds)):
        for array, got in zip(feeds.values(), results, strict=True):
            np.testing.assert_array_equal(got, np.sign(array))
            assert got.dtype == array.dtype
