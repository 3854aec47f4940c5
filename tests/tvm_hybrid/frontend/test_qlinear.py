"""ONNX Runtime's quantised operators compared with ONNX Runtime without optimisations.

If a float operator runs between conversions, ONNX Runtime folds scales or sums integers. Other
roundings of one number may differ by one next to a tie. Each test states the allowed share: float32
has relative errors of 1e-7, and few values lie that near to a tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import (
    Declaration,
    integers,
    make_model,
    onnxruntime_run,
    operators,
    run_imported,
    within_one,
)

pytestmark = pytest.mark.turns

MICROSOFT = "com.microsoft"
TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
# Share of results that rounding may change if values are not ties by construction.
RARE = 0.01


def parameters(dtype: str, **scales: float) -> dict[str, NDArray]:
    """The given scales, and a zero point for each: sa, za, ..."""
    values: dict[str, NDArray] = {}
    for position, (name, scale) in enumerate(scales.items()):
        values[f"s{name}"] = np.array(scale, np.float32)
        values[f"z{name}"] = np.array(3 + 20 * position, dtype)
    return values


def check(model: onnx.ModelProto, feeds: dict[str, NDArray], share: float = RARE) -> None:
    """Runs both and compares the results."""
    imported = import_onnx(model)
    (got,), (wanted,) = run_imported(imported, feeds), onnxruntime_run(model, feeds)
    assert str(got.dtype) == imported.outputs[0].dtype
    within_one(got, wanted, share)


def declared(name: str, dtype: str, *dims: int | None) -> Declaration:
    """An 8-bit input or output."""
    return name, TYPES[dtype], dims


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("right", [(3, 4, 50), (50,), ()], ids=str)
def test_binary(op_type: str, dtype: str, right: tuple[int, ...]) -> None:
    scale = 0.037 if op_type == "QLinearAdd" else 0.31
    constants = parameters(dtype, a=0.0213, b=0.0371, y=scale)
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    node = helper.make_node(op_type, names, ["y"], domain=MICROSOFT)
    model = make_model([node], [declared("a", dtype, 3, 4, 50), declared("b", dtype, *right)],
                       [declared("y", dtype, 3, 4, 50)], constants)  # fmt: skip
    check(model, {"a": integers(3, 4, 50, dtype=dtype), "b": integers(*right, dtype=dtype, seed=1)})


TIES = {
    "QLinearAdd": ("a b", {}),
    "QLinearMul": ("a b", {}),
    "QLinearAveragePool": ("a", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "QLinearGlobalAveragePool": ("a", {}),
    "QLinearLeakyRelu": ("a", {"alpha": 0.25}),
    "QLinearConcat": ("a b", {"axis": 1}),
    "QLinearWhere": ("a b", {}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("op_type", TIES)
@pytest.mark.parametrize("dtype", TYPES)
def test_ties_with_an_odd_zero_point(op_type: str, dtype: str) -> None:
    """Scales are powers of 2, so a tenth or more are ties and nothing else is rounded:
    some operators round before they add the zero point, some after."""
    sources, attributes = TIES[op_type]
    feeds = {name: integers(2, 8, 8, 8, dtype=dtype, seed=ord(name)) for name in sources.split()}
    constants = {"sa": 2.0**-6, "sb": 2.0**-5, "sy": 2.0**-4}
    if op_type == "QLinearGlobalAveragePool":
        constants["sa"] = 0.25
    values = {name: np.array(value, np.float32) for name, value in constants.items()}
    values |= {name: np.array(zero, dtype) for name, zero in (("za", 3), ("zb", 8), ("zy", 15))}
    arguments = [name for source in feeds for name in (source, f"s{source}", f"z{source}")]
    arguments = [*arguments, "sy", "zy"]
    inputs = [declared(name, dtype, *array.shape) for name, array in feeds.items()]
    if op_type == "QLinearConcat":
        arguments = [*arguments[-2:], *arguments[:-2]]
    if op_type == "QLinearWhere":
        feeds["c"] = integers(2, 8, 8, 8, seed=9) > 99
        arguments.insert(0, "c")
        inputs.append(("c", TensorProto.BOOL, [2, 8, 8, 8]))
    node = helper.make_node(op_type, arguments, ["y"], domain=MICROSOFT, **attributes)
    model = make_model([node], inputs, [declared("y", dtype, None, None, None, None)], values)
    check(model, feeds, share=0)


def test_zero_points_that_are_absent() -> None:
    """Absent zero points are 0; with one scale for all, the operator is a saturating sum."""
    constants = {name: np.array(0.02, np.float32) for name in ("sa", "sb", "sy")}
    node = helper.make_node(
        "QLinearAdd", ["a", "sa", "", "b", "sb", "", "sy"], ["y"], domain=MICROSOFT
    )
    inputs = [declared("a", "int8", 99), declared("b", "int8", 99)]
    model = make_model([node], inputs, [declared("y", "int8", 99)], constants)
    a, b = integers(99, dtype="int8"), integers(99, dtype="int8", seed=1)
    wanted = np.clip(a.astype(np.int32) + b, -128, 127).astype(np.int8)
    (got,) = run_imported(import_onnx(model), {"a": a, "b": b})
    np.testing.assert_array_equal(got, wanted)


def test_parameters_of_run_time() -> None:
    constants = parameters("uint8", a=0.0213, b=0.0371, y=0.05)
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    node = helper.make_node("QLinearAdd", names, ["y"], domain=MICROSOFT)
    inputs = [declared("a", "uint8", 60), declared("b", "uint8", 60)]
    inputs += [(name, helper.np_dtype_to_tensor_dtype(v.dtype), []) for name, v in
               constants.items()]  # fmt: skip
    model = make_model([node], inputs, [declared("y", "uint8", 60)])
    check(model, {"a": integers(60), "b": integers(60, seed=1), **constants})


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op_type", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_unary(op_type: str, dtype: str) -> None:
    constants = parameters(dtype, a=0.05, y=1 / 256 if op_type == "QLinearSigmoid" else 0.05)
    attributes = {"alpha": 0.2} if op_type == "QLinearLeakyRelu" else {}
    node = helper.make_node(op_type, ["a", "sa", "za", "sy", "zy"], ["y"], domain=MICROSOFT,
                            **attributes)  # fmt: skip
    inputs, outputs = [declared("a", dtype, 256)], [declared("y", dtype, 256)]
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    # All 256 values: LeakyRelu's alpha is 1/5, so 1 in 10 products may be a tie.
    share = RARE if op_type == "QLinearSigmoid" else 0.1
    check(make_model([node], inputs, outputs, constants), {"a": every}, share)


@pytest.mark.sampled
@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("dtype", TYPES)
def test_softmax(dtype: str, axis: int, opset: int) -> None:
    constants = parameters(dtype, a=0.05, y=1 / 256)
    constants["zy"] = np.array(0 if dtype == "uint8" else -128, dtype)
    node = helper.make_node("QLinearSoftmax", ["a", "sa", "za", "sy", "zy"], ["y"],
                            domain=MICROSOFT, axis=axis, opset=opset)  # fmt: skip
    shape = (3, 4, 6)
    model = make_model(
        [node], [declared("a", dtype, *shape)], [declared("y", dtype, *shape)], constants
    )
    # ONNX Runtime sums rounded exponentials from a table.
    check(model, {"a": integers(*shape, dtype=dtype)}, share=0.2)


def test_where() -> None:
    constants = parameters("uint8", a=0.02, b=0.05, y=0.04)
    names = ["c", "a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    node = helper.make_node("QLinearWhere", names, ["y"], domain=MICROSOFT)
    inputs = [("c", TensorProto.BOOL, [4, 1]), declared("a", "uint8", 4, 9),
              declared("b", "uint8", 9)]  # fmt: skip
    model = make_model([node], inputs, [declared("y", "uint8", 4, 9)], constants)
    condition = np.array([[True], [False], [True], [False]])
    feeds = {"c": condition, "a": integers(4, 9), "b": integers(9, seed=1)}
    # ONNX Runtime multiplies by a quotient of scales: 0.02 / 0.04 makes every other value a tie.
    check(model, feeds, share=0.5)


@pytest.mark.parametrize("same", [True, False])
def test_concat(same: bool) -> None:
    constants = parameters("uint8", y=0.04, a=0.04 if same else 0.0213, b=0.0371)
    if same:
        constants["za"] = constants["zy"]
    names = ["sy", "zy", "a", "sa", "za", "b", "sb", "zb"]
    node = helper.make_node("QLinearConcat", names, ["y"], domain=MICROSOFT, axis=1)
    inputs = [declared("a", "uint8", 4, 9), declared("b", "uint8", 4, 5)]
    model = make_model([node], inputs, [declared("y", "uint8", 4, 14)], constants)
    check(model, {"a": integers(4, 9), "b": integers(4, 5, seed=1)})
    # A part that already has the output's scale is copied.
    assert operators(import_onnx(model))["quantize"] == (1 if same else 2)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_global_average_pool(dtype: str, last: int) -> None:
    constants = parameters(dtype, a=0.02, y=0.0113)
    node = helper.make_node("QLinearGlobalAveragePool", ["a", "sa", "za", "sy", "zy"], ["y"],
                            domain=MICROSOFT, channels_last=last)  # fmt: skip
    shape = (2, 5, 7, 8) if last else (2, 8, 5, 7)
    out = (2, 1, 1, 8) if last else (2, 8, 1, 1)
    model = make_model(
        [node], [declared("a", dtype, *shape)], [declared("y", dtype, *out)], constants
    )
    check(model, {"a": integers(*shape, dtype=dtype)}, share=0.1)


@pytest.mark.sampled
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"strides": [2, 2], "pads": [1, 1, 0, 1]},
     {"pads": [1, 1, 1, 1], "count_include_pad": 1}, {"strides": [2, 2], "ceil_mode": 1}],
    ids=str,
)  # fmt: skip
def test_average_pool(attributes: dict[str, Any], last: int) -> None:
    constants = parameters("uint8", a=0.02, y=0.0213)
    node = helper.make_node("QLinearAveragePool", ["a", "sa", "za", "sy", "zy"], ["y"],
                            domain=MICROSOFT, kernel_shape=[3, 2], channels_last=last,
                            **attributes)  # fmt: skip
    shape = (2, 6, 7, 8) if last else (2, 8, 6, 7)
    out = declared("y", "uint8", None, None, None, None)
    model = make_model([node], [declared("a", "uint8", *shape)], [out], constants)
    check(model, {"a": integers(*shape)})


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduce_mean(keepdims: int, opset: int) -> None:
    """ONNX Runtime has the schema but no kernel, so NumPy is the reference."""
    constants = parameters("uint8", a=0.02, y=0.0113)
    node = helper.make_node("QLinearReduceMean", ["a", "sa", "za", "sy", "zy"], ["y"],
                            domain=MICROSOFT, axes=[1, -1], keepdims=keepdims)  # fmt: skip
    out = declared("y", "uint8", *([None] * (4 if keepdims else 2)))
    model = make_model([node], [declared("a", "uint8", 2, 5, 3, 7)], [out], constants, opset=opset)
    a = integers(2, 5, 3, 7)
    mean = (a.astype(np.float64) - 3).mean((1, 3), keepdims=bool(keepdims)) * 0.02
    wanted = np.clip(np.rint(mean / 0.0113) + 23, 0, 255).astype(np.uint8)
    within_one(run_imported(import_onnx(model), {"a": a})[0], wanted, RARE)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "window": ((2, 3, 8, 9), (6, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 3, 9, 9), (6, 3, 3, 3), {"strides": [2, 2]}),
    "depthwise": ((1, 6, 8, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "1x1": ((2, 3, 5, 5), (6, 3, 1, 1), {}),
    "one axis": ((2, 3, 12), (6, 3, 3), {}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("pair", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_conv(name: str, pair: tuple[str, str], per_channel: bool) -> None:
    shape, kernel, attributes = CONVOLUTIONS[name]
    constants = parameters(pair[0], x=0.02, y=0.5)
    channels = 6 if per_channel else ()
    rng = np.random.default_rng(2)
    constants |= {
        "w": integers(*kernel, dtype=pair[1], seed=1),
        "sw": rng.uniform(0.01, 0.04, channels).astype(np.float32),
        "zw": np.zeros(channels, pair[1]),
        "b": rng.integers(-5000, 5000, 6).astype(np.int32),
    }
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], **attributes)
    out = declared("y", pair[0], *([None] * len(shape)))
    model = make_model([node], [declared("x", pair[0], *shape)], [out], constants)
    check(model, {"x": integers(*shape, dtype=pair[0])}, share=0)
    # An integer convolution from the start.
    assert operators(import_onnx(model))["dequantize"] == 0


def test_conv_with_channels_last() -> None:
    constants = parameters("uint8", x=0.02, y=0.5)
    constants |= {"w": integers(6, 3, 3, 3, dtype="int8"), "sw": np.array(0.03, np.float32),
                  "zw": np.array(0, np.int8)}  # fmt: skip
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
    node = helper.make_node("QLinearConv", names, ["y"], domain=MICROSOFT, channels_last=1)
    model = make_model([node], [declared("x", "uint8", 2, 8, 9, 3)],
                       [declared("y", "uint8", 2, 6, 7, 6)], constants)  # fmt: skip
    check(model, {"x": integers(2, 8, 9, 3)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sw": np.ones(4, np.float32)}, r"'culprit'.*'sw'.*\(4,\).*6 output channels"),
        ({"sy": np.ones(6, np.float32)}, r"'culprit'.*'sy'.*\(6,\)"),
        ({"zx": np.array(1, np.int8)}, "culprit.*'zx'.*zero_point.*same type"),
        ({"zy": np.array(1, np.int32)}, "'culprit'.*y_zero_point.*int32"),  # by ONNX's inference
    ],
    ids=str,
)
def test_broken_parameters(change: dict[str, NDArray], message: str) -> None:
    constants = parameters("uint8", x=0.02, y=0.5)
    constants |= {"w": integers(6, 3, 3, 3, dtype="int8"), "sw": np.array(0.03, np.float32),
                  "zw": np.array(0, np.int8)}  # fmt: skip
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
    node = helper.make_node("QLinearConv", names, ["y"], name="culprit")
    model = make_model([node], [declared("x", "uint8", 2, 3, 8, 9)],
                       [declared("y", "uint8", 2, 6, 6, 7)], constants | change)  # fmt: skip
    with pytest.raises(ModelError, match=message):
        import_onnx(model)


def test_a_concat_that_lacks_inputs() -> None:
    node = helper.make_node("QLinearConcat", ["s", "z", "a", "s"], ["y"], domain=MICROSOFT, axis=0,
                            name="culprit")  # fmt: skip
    constants = {"s": np.array(1, np.float32), "z": np.array(0, np.uint8)}
    model = make_model([node], [declared("a", "uint8", 3)], [declared("y", "uint8", 3)], constants)
    with pytest.raises(ModelError, match=r"'culprit'.*4 inputs"):
        import_onnx(model)
