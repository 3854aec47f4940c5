"""Integer products compared with ONNX's reference and ONNX Runtime, and their form in Relax."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import ImportedModel, import_onnx

from .models import (
    Declaration,
    compare,
    f32,
    integers,
    make_model,
    onnxruntime_run,
    operators,
    random,
    run_imported,
)

MICROSOFT = "com.microsoft"
TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
PAIRS = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "uint8"), ("int8", "int8")]


def value(name: str, dtype: str, *dims: int | None) -> Declaration:
    """An 8-bit input or output."""
    return name, TYPES[dtype], dims


def i32(name: str, *dims: int | None) -> Declaration:
    """An int32 output."""
    return name, TensorProto.INT32, dims


def constants_of(imported: ImportedModel) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of every constant that main reads."""
    found: list[tuple[tuple[int, ...], str]] = []

    def visit(expr: relax.Expr) -> None:
        array = getattr(getattr(expr, "value", None), "numpy", lambda: None)()
        if array is not None:
            found.append((array.shape, str(array.dtype)))

    relax.analysis.post_order_visit(imported.mod["main"], visit)
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("zero_points", ["absent", "zero", "left", "right", "both", "columns"])
def test_matmul_integer(pair: tuple[str, str], zero_points: str) -> None:
    left, right = pair
    constants: dict[str, NDArray] = {"b": integers(37, 5, dtype=right, seed=1)}
    names = ["a", "b"]
    offsets = {"absent": None, "zero": (0, 0), "left": (3, 0), "right": (0, 7)}.get(
        zero_points, (9, 100)
    )
    if offsets is not None:
        constants["za"] = np.array(offsets[0], left)
        constants["zb"] = np.array(offsets[1], right)
        names += ["za", "zb"]
    if zero_points == "columns":
        constants["zb"] = integers(5, dtype=right, seed=2)
    model = make_model([helper.make_node("MatMulInteger", names, ["y"])],
                       [value("a", left, 2, 3, 37)], [i32("y", 2, 3, 5)], constants)  # fmt: skip
    feeds = {"a": integers(2, 3, 37, dtype=left)}
    imported = compare(model, feeds)
    if (left, right, zero_points) != ("int8", "uint8", "columns"):
        compare(model, feeds, onnxruntime_run(model, feeds))
    # The weight stays unchanged, and a zero point of 0 needs no operator.
    subtractions = {"left": 1, "right": 1, "both": 2, "columns": 2}.get(zero_points, 0)
    assert operators(imported)["subtract"] == subtractions
    assert operators(imported)["matmul"] == 1
    assert ((37, 5), right) in constants_of(imported)
    assert not any(dtype == "int32" and shape[-1:] == (5,) and len(shape) > 1
                   for shape, dtype in constants_of(imported))  # fmt: skip


def test_matmul_integer_of_run_time_zero_points() -> None:
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    inputs = [value("a", "uint8", 3, 9), value("b", "uint8", 9, 4), value("za", "uint8", 1),
              value("zb", "uint8", 4)]  # fmt: skip
    model = make_model([node], inputs, [i32("y", 3, 4)])
    feeds = {"a": integers(3, 9), "b": integers(9, 4, seed=1), "za": np.array([7], np.uint8),
             "zb": integers(4, seed=2)}  # fmt: skip
    compare(model, feeds)


def test_matmul_integer_with_a_zero_point_for_each_row() -> None:
    """The zero point is [M] by the specification; ONNX's reference would apply it to columns."""
    node = helper.make_node("MatMulInteger", ["a", "b", "za"], ["y"])
    a, b, offsets = integers(3, 9), integers(9, 4, seed=1), integers(3, seed=2)
    model = make_model([node], [value("a", "uint8", 3, 9)], [i32("y", 3, 4)],
                       {"b": b, "za": offsets})  # fmt: skip
    wide = a.astype(np.int32) - offsets[:, None].astype(np.int32)
    compare(model, {"a": a}, [wide @ b.astype(np.int32)])


@pytest.mark.parametrize("shapes", [((37,), (37, 5)), ((3, 37), (37,)), ((2, 3, 9), (2, 9, 4))])
def test_matmul_integer_of_other_ranks(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    node = helper.make_node("MatMulInteger", ["a", "b", "z"], ["y"])
    a, b = integers(*shapes[0]), integers(*shapes[1], dtype="int8")
    wanted = (a.astype(np.int32) - 3) @ b.astype(np.int32)
    model = make_model([node], [value("a", "uint8", *shapes[0]), value("b", "int8", *shapes[1])],
                       [i32("y", *wanted.shape)], {"z": np.array(3, np.uint8)})  # fmt: skip
    compare(model, {"a": a, "b": b}, [wanted])


def qlinear_matmul(
    pair: tuple[str, str], out: str, scales: dict[str, Any], offsets: dict[str, Any]
) -> onnx.ModelProto:
    """A QLinearMatMul with a constant second operand."""
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    constants = {name: np.asarray(v, np.float32) for name, v in scales.items()}
    types = {"za": pair[0], "zb": pair[1], "zy": out}
    constants |= {name: np.asarray(v, types[name]) for name, v in offsets.items()}
    constants["b"] = integers(64, 5, dtype=pair[1], seed=1)
    node = helper.make_node("QLinearMatMul", names, ["y"])
    return make_model([node], [value("a", pair[0], 33, 64)], [value("y", out, 33, 5)], constants)


SCALE = {"sa": 0.02, "sb": 0.0313, "sy": 3.1}
PER_COLUMN = SCALE | {"sb": [0.01, 0.02, 0.03, 0.04, 0.05]}


@pytest.mark.sampled
@pytest.mark.parametrize("scales", [SCALE, PER_COLUMN], ids=["tensor", "columns"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("offset", [0, 13])
def test_qlinear_matmul(pair: tuple[str, str], offset: int, scales: dict[str, Any]) -> None:
    """Equal to ONNX Runtime bit for bit: one factor, one rounding, half to even."""
    per_column = scales is PER_COLUMN
    offsets = {"za": offset, "zb": [offset] * 5 if per_column else offset, "zy": offset + 5}
    model = qlinear_matmul(pair, pair[0], scales, offsets)
    feeds = {"a": integers(33, 64, dtype=pair[0])}
    imported = compare(model, feeds, by_text(model, feeds))
    if pair != ("int8", "uint8"):  # ONNX Runtime lacks it
        compare(model, feeds, onnxruntime_run(model, feeds))
    assert operators(imported)["matmul"] == operators(imported)["quantize"] == 1


def by_text(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    """QLinearMatMul in NumPy; ONNX's reference adds the zero point before rounding."""
    c = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    left = feeds["a"].astype(np.int32) - c["za"].astype(np.int32)
    right = c["b"].astype(np.int32) - c["zb"].astype(np.int32)
    factor = c["sa"] * c["sb"] / c["sy"]
    limits = np.iinfo(c["zy"].dtype)
    value = np.rint((left @ right).astype(np.float32) * factor).astype(np.int64) + c["zy"]
    return [np.clip(value, limits.min, limits.max).astype(c["zy"].dtype)]


def test_qlinear_matmul_at_ties() -> None:
    """Factor 1/2: every odd sum is a tie, and an odd zero point must not change its rounding."""
    constants = {"b": np.eye(4, dtype=np.uint8), "one": np.array(1, np.float32),
                 "two": np.array(2, np.float32), "z": np.array(0, np.uint8),
                 "zy": np.array(3, np.uint8)}  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["a", "one", "z", "b", "one", "z", "two", "zy"], ["y"])
    model = make_model([node], [value("a", "uint8", 2, 4)], [value("y", "uint8", 2, 4)], constants)
    a = np.array([[1, 3, 5, 7], [2, 4, 255, 254]], np.uint8)
    wanted = np.array([[3, 5, 5, 7], [4, 5, 131, 130]], np.uint8)
    compare(model, {"a": a}, [wanted])
    compare(model, {"a": a}, onnxruntime_run(model, {"a": a}))


def test_qlinear_matmul_of_run_time_scales() -> None:
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    inputs = [value("a", "uint8", 3, 9), f32("sa", 1), value("za", "uint8", 1),
              value("b", "uint8", 9, 4), f32("sb"), value("zb", "uint8"), f32("sy"),
              value("zy", "uint8")]  # fmt: skip
    model = make_model([node], inputs, [value("y", "uint8", 3, 4)])
    feeds = {"a": integers(3, 9), "b": integers(9, 4, seed=1),
             "sa": np.array([0.1], np.float32), "sb": np.array(0.2, np.float32),
             "sy": np.array(9.7, np.float32), "za": np.array([100], np.uint8),
             "zb": np.array(120, np.uint8), "zy": np.array(128, np.uint8)}  # fmt: skip
    compare(model, feeds, onnxruntime_run(model, feeds))


def test_qlinear_matmul_with_a_scale_for_each_row() -> None:
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    scales = np.array([0.5, 1, 2], np.float32)
    constants: dict[str, NDArray] = {
        "sa": scales, "za": np.array([1, 2, 3], np.uint8),
        "b": integers(9, 4, dtype="int8"), "sb": np.array(0.25, np.float32),
        "zb": np.array(0, np.int8),
        "sy": np.array(40, np.float32), "zy": np.array(100, np.uint8),
    }  # fmt: skip
    model = make_model([helper.make_node("QLinearMatMul", names, ["y"])],
                       [value("a", "uint8", 3, 9)], [value("y", "uint8", 3, 4)],
                       constants)  # fmt: skip
    a = integers(3, 9, seed=1)
    product = (a.astype(np.int32) - [[1], [2], [3]]) @ constants["b"].astype(np.int32)
    factor = scales[:, None] * np.float32(0.25) / np.float32(40)
    wanted = np.clip(np.rint(product.astype(np.float32) * factor) + 100, 0, 255)
    compare(model, {"a": a}, [wanted.astype(np.uint8)])


@pytest.mark.sampled
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("flags", [(1, 0), (0, 1)])
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("pair", [("uint8", "int8"), ("int8", "int8")])
def test_qgemm(
    pair: tuple[str, str], per_column: bool, flags: tuple[int, int], quantized: bool
) -> None:
    names = ["a", "sa", "za", "b", "sb", "zb", "c"]
    shape = (24, 7) if flags[0] else (7, 24)
    rng = np.random.default_rng(5)
    constants: dict[str, NDArray] = {
        "sa": np.array(0.017, np.float32), "za": np.array(11, pair[0]),
        "b": integers(*((5, 24) if flags[1] else (24, 5)), dtype=pair[1], seed=1),
        "sb": rng.uniform(0.01, 0.02, 5 if per_column else ()).astype(np.float32),
        "zb": np.array([3] * 5 if per_column else 3, pair[1]),
        "c": rng.integers(-20000, 20000, 5).astype(np.int32),
    }  # fmt: skip
    if quantized:
        names += ["sy", "zy"]
        constants |= {"sy": np.array(0.31, np.float32), "zy": np.array(17, pair[0])}
    node = helper.make_node("QGemm", names, ["y"], domain=MICROSOFT, alpha=1.5, transA=flags[0],
                            transB=flags[1])  # fmt: skip
    output = value("y", pair[0], 7, 5) if quantized else f32("y", 7, 5)
    model = make_model([node], [value("a", pair[0], *shape)], [output], constants)
    feeds = {"a": integers(*shape, dtype=pair[0])}
    # The float result is one product of two float32 numbers, hence equal, too.
    imported = compare(model, feeds, onnxruntime_run(model, feeds), rtol=0, atol=0)
    assert ((24, 5), pair[1]) in constants_of(imported)


@pytest.mark.sampled
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_products_that_give_floats(dtype: str, per_column: bool, bias: bool) -> None:
    columns = 6 if per_column else 1
    constants: dict[str, NDArray] = {
        "b": integers(40, 6, dtype=dtype),
        "sb": np.linspace(0.01, 0.03, columns, dtype=np.float32),
        "zb": np.arange(columns).astype(dtype),
    }
    if bias:
        constants["bias"] = random(6)
    extra = ["bias"] if bias else []
    dynamic = helper.make_node(
        "DynamicQuantizeMatMul", ["x", "b", "sb", "zb", *extra], ["y"], domain=MICROSOFT
    )
    model = make_model([dynamic], [f32("x", 3, 40)], [f32("y", 3, 6)], constants)
    x = random(3, 40, seed=1)
    # Equal except that product and sum may be fused into one rounding.
    imported = compare(model, {"x": x}, onnxruntime_run(model, {"x": x}), rtol=1e-6, atol=1e-6)
    assert operators(imported)["matmul"] == 1

    node = helper.make_node("MatMulIntegerToFloat", ["a", "b", "sa", "sb", "za", "zb", *extra],
                            ["y"], domain=MICROSOFT)  # fmt: skip
    constants["sa"] = np.array(0.05, np.float32)
    constants["za"] = np.array(121, np.uint8)
    model = make_model([node], [value("a", "uint8", 3, 40)], [f32("y", 3, 6)], constants)
    feeds = {"a": integers(3, 40)}
    compare(model, feeds, onnxruntime_run(model, feeds), rtol=1e-6, atol=1e-4)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((2, 3, 5, 4), (6, 3, 1, 1), {}),
    "window": ((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 3, 7, 7), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
    "dilated": ((1, 2, 7, 7), (3, 2, 3, 3), {"dilations": [2, 2]}),
    "groups": ((1, 4, 5, 5), (6, 2, 3, 3), {"group": 2}),
    "same": ((1, 2, 6, 6), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "1x1 strided": ((1, 2, 6, 6), (3, 2, 1, 1), {"strides": [2, 2]}),
    "one axis": ((1, 2, 9), (3, 2, 3), {}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("zero_points", [[], ["zx"], ["zx", "zw"]], ids=len)
def test_conv_integer(name: str, zero_points: list[str]) -> None:
    shape, kernel, attributes = CONVOLUTIONS[name]
    constants = {"w": integers(*kernel, seed=1), "zx": np.array(77, np.uint8),
                 "zw": np.array(130, np.uint8)}  # fmt: skip
    node = helper.make_node("ConvInteger", ["x", "w", *zero_points], ["y"], **attributes)
    constants = {key: constants[key] for key in ("w", *zero_points)}
    dims = [None] * len(shape)
    model = make_model([node], [value("x", "uint8", *shape)], [i32("y", *dims)], constants)
    feeds = {"x": integers(*shape)}
    imported = compare(model, feeds, onnxruntime_run(model, feeds))
    assert (kernel, "uint8") in constants_of(imported)


def test_conv_integer_with_a_zero_point_for_each_channel() -> None:
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"])
    w, offsets = integers(3, 2, 3, 3, dtype="int8"), np.array([-5, 0, 9], np.int8)
    model = make_model([node], [value("x", "uint8", 1, 2, 5, 5)], [i32("y", 1, 3, 3, 3)],
                       {"w": w, "zx": np.array(3, np.uint8), "zw": offsets})  # fmt: skip
    x = integers(1, 2, 5, 5)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int32) - 3, (3, 3), (2, 3))
    wide = w.astype(np.int32) - offsets[:, None, None, None].astype(np.int32)
    compare(model, {"x": x}, [np.einsum("nchwij,mcij->nmhw", windows, wide).astype(np.int32)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zx": np.array(1, np.int8)}, "culprit.*'zx'.*x_zero_point has inconsistent type"),
        ({"zw": np.array(1, np.uint8)}, "culprit.*'zw'.*w_zero_point has inconsistent type"),
        ({"zw": np.zeros(2, np.int8)}, r"culprit.*'zw'.*the shape \(2,\).*3 output channels"),
        ({"zx": np.zeros(2, np.uint8)}, r"culprit.*'zx'.*the shape \(2,\).*one zero point"),
    ],
    ids=str,
)
def test_a_broken_conv_integer(change: dict[str, Any], message: str) -> None:
    constants = {"w": integers(3, 2, 3, 3, dtype="int8"), "zx": np.array(3, np.uint8),
                 "zw": np.zeros(3, np.int8)}  # fmt: skip
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], name="culprit")
    model = make_model([node], [value("x", "uint8", 1, 2, 5, 5)], [i32("y", 1, 3, 3, 3)],
                       constants | change)  # fmt: skip
    with pytest.raises(ModelError, match=message):
        import_onnx(model)


def bad(change: dict[str, Any]) -> onnx.ModelProto:
    """A QLinearMatMul with changed constants."""
    model = qlinear_matmul(("uint8", "int8"), "uint8", SCALE, {"za": 1, "zb": 2, "zy": 3})
    for item in model.graph.initializer:
        if item.name in change:
            item.CopyFrom(onnx.numpy_helper.from_array(change[item.name], item.name))
    model.graph.node[0].name = "culprit"
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"za": np.array(1, np.int8)}, "culprit.*'za'.*zero_point.*same type"),
        ({"zb": np.array(1, np.uint8)}, "culprit.*'zb'.*zero_point.*same type"),
        ({"zb": np.ones(4, np.int8)}, r"culprit.*'zb'.*\(4,\).*5 columns"),
        ({"sb": np.ones(4, np.float32)}, r"culprit.*'sb'.*\(4,\).*5 columns"),
        ({"sy": np.ones(5, np.float32)}, r"culprit.*'sy'.*\(5,\)"),
        ({"sa": np.ones(4, np.float32)}, r"culprit.*\(4,\).*\(33, 64\)"),
        ({"zy": np.array(0, np.int32)}, "culprit.*y_zero_point.*int32"),
        ({"b": np.ones((64, 5), np.float32)}, "culprit.*'b'.*same type"),
    ],
    ids=str,
)
def test_broken_parameters(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_onnx(bad(change))


def test_constant_products_are_folded() -> None:
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["c"]),
             helper.make_node("Add", ["x", "c"], ["y"])]  # fmt: skip
    constants = {"a": integers(2, 3), "b": integers(3, 2)}
    model = make_model(nodes, [i32("x", 2, 2)], [i32("y", 2, 2)], constants)
    imported = import_onnx(model)
    assert operators(imported) == {"add": 1}
    x = np.zeros((2, 2), np.int32)
    wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert run_imported(imported, {"x": x})[0].tolist() == wanted.tolist()
