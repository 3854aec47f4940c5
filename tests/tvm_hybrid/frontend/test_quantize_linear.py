"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear in all forms, and their folding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_hybrid
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import (
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
TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
}


def with_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model's nodes under another opset version."""
    model.opset_import[0].version = opset
    model.ir_version = 10
    return model


def reference(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    """ONNX's reference, which lacks DequantizeLinear before opset 19."""
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    version = model.opset_import[0].version
    return ReferenceEvaluator(with_opset(newer, max(version, 19))).run(None, feeds)


def quantize_model(
    constants: dict[str, NDArray], out: str, opset: int = 13, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """x[4, 3, 6] -> QuantizeLinear -> y."""
    node = helper.make_node("QuantizeLinear", ["x", *constants], ["y"], domain=domain, **attributes)
    outputs = [("y", TYPES[out], [4, 3, 6])]
    return with_opset(make_model([node], [f32("x", 4, 3, 6)], outputs, constants), opset)


def awkward(step: float) -> NDArray[np.float32]:
    """[4, 3, 6] numbers: ties of a step, far values, and others."""
    x = 40 * random(4, 3, 6)
    x[0] = (np.arange(-9, 9).reshape(3, 6) + 0.5) * step
    x[1, 0] = [1e30, -1e30, 1e9, -1e9, 0.0, -0.0]
    return x


@pytest.mark.sampled
@pytest.mark.parametrize("opset", [10, 13, 19, 21, 24])
@pytest.mark.parametrize("zero_point", [None, 0, 7])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantize_linear(dtype: str, zero_point: int | None, opset: int) -> None:
    constants: dict[str, NDArray] = {"s": np.array(0.25, np.float32)}
    if zero_point is not None:
        constants["z"] = np.array(zero_point, dtype)
    out = "uint8" if zero_point is None else dtype
    model = quantize_model(constants, out, opset)
    feeds = {"x": awkward(0.25)}
    imported = compare(model, feeds, by_text(feeds["x"], constants))
    assert operators(imported) == {"quantize": 1}
    compare(model, feeds, onnxruntime_run(model, feeds))


def by_text(x: NDArray, constants: dict[str, NDArray], axis: int = 1) -> list[NDArray]:
    """saturate(round half to even(x / scale) + zero point); the reference overflows at 1e30."""
    zero_point = constants.get("z", np.zeros(constants["s"].shape, np.uint8))
    shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
    scale, offset = (v if v.ndim == 0 else v.reshape(shape) for v in (constants["s"], zero_point))
    limits = np.iinfo(zero_point.dtype)
    value = np.rint(x / scale).astype(np.float64) + offset
    return [np.clip(value, limits.min, limits.max).astype(zero_point.dtype)]


@pytest.mark.sampled
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, None])
@pytest.mark.parametrize("zero_point", [True, False])
def test_quantize_linear_per_axis(axis: int | None, zero_point: bool) -> None:
    count = (4, 3, 6)[1 if axis is None else axis]
    constants: dict[str, NDArray] = {"s": np.linspace(0.1, 0.9, count, dtype=np.float32)}
    if zero_point:
        constants["z"] = integers(count)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    model = quantize_model(constants, "uint8", **attributes)
    feeds = {"x": awkward(0.1)}
    compare(model, feeds, by_text(feeds["x"], constants, 1 if axis is None else axis))
    if zero_point:  # ONNX Runtime requires one
        compare(model, feeds, onnxruntime_run(model, feeds))


@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_quantize_to_16_bits(dtype: str) -> None:
    constants = {"s": np.array(1e-3, np.float32), "z": np.array(100, dtype)}
    model = quantize_model(constants, dtype, opset=21)
    feeds = {"x": awkward(1e-3)}
    compare(model, feeds, by_text(feeds["x"], constants))


@pytest.mark.parametrize("name", ["int8", "uint16"])
def test_output_dtype(name: str) -> None:
    constants = {"s": np.array(0.5, np.float32)}
    model = quantize_model(constants, name, opset=21, output_dtype=TYPES[name])
    feeds = {"x": 40 * random(4, 3, 6)}
    compare(model, feeds)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_quantize_narrow_floats(dtype: str) -> None:
    """Only the quotient is rounded to float32, as in ONNX Runtime."""
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    constants: dict[str, NDArray] = {"s": np.array(0.0377, kind), "z": np.array(3, np.int8)}
    model = make_model(
        [node], [("x", TYPES[dtype], [500])], [("y", TensorProto.INT8, [500])], constants
    )
    x = random(500).astype(kind)
    wanted = by_text(x.astype(np.float32), {"s": constants["s"].astype(np.float32),
                                            "z": constants["z"]})  # fmt: skip
    imported = compare(with_opset(model, 21), {"x": x}, wanted)
    assert imported.inputs[0].dtype == dtype


def dequantize_model(
    dtype: str, constants: dict[str, NDArray], opset: int = 13, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """q[4, 3, 6] -> DequantizeLinear -> y."""
    node = helper.make_node(
        "DequantizeLinear", ["q", *constants], ["y"], domain=domain, **attributes
    )
    kind = attributes.get("output_dtype") or helper.np_dtype_to_tensor_dtype(constants["s"].dtype)
    inputs, outputs = [("q", TYPES[dtype], [4, 3, 6])], [("y", kind, [4, 3, 6])]
    return with_opset(make_model([node], inputs, outputs, constants), opset)


def exact(model: onnx.ModelProto, feeds: dict[str, NDArray], expected: NDArray) -> None:
    """Requires equality: (q - z) * s is one rounding of one product."""
    compare(model, feeds, [expected], rtol=0, atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("opset", [10, 13, 19, 21, 24])
@pytest.mark.parametrize("zero_point", [None, 0, 7])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_dequantize_linear(dtype: str, zero_point: int | None, opset: int) -> None:
    constants: dict[str, NDArray] = {"s": np.array(0.0137, np.float32)}
    if zero_point is not None:
        constants["z"] = np.array(zero_point, dtype)
    model = dequantize_model(dtype, constants, opset)
    feeds = {"q": integers(4, 3, 6, dtype=dtype)}
    exact(model, feeds, reference(model, feeds)[0])
    exact(model, feeds, onnxruntime_run(model, feeds)[0])
    assert operators(import_onnx(model)) == {"dequantize": 1}


@pytest.mark.sampled
@pytest.mark.parametrize("axis", [0, 1, -1, -2, None])
@pytest.mark.parametrize("zero_point", [True, False])
def test_dequantize_linear_per_axis(axis: int | None, zero_point: bool) -> None:
    count = (4, 3, 6)[1 if axis is None else axis]
    constants: dict[str, NDArray] = {"s": np.linspace(0.1, 0.9, count, dtype=np.float32)}
    if zero_point:
        constants["z"] = integers(count, dtype="int8")
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    model = dequantize_model("int8", constants, **attributes)
    feeds = {"q": integers(4, 3, 6, dtype="int8")}
    exact(model, feeds, reference(model, feeds)[0])
    exact(model, feeds, onnxruntime_run(model, feeds)[0])


@pytest.mark.parametrize("dtype", ["int32", "uint16", "int16"])
def test_dequantize_wider_integers(dtype: str) -> None:
    model = dequantize_model(dtype, {"s": np.array(0.01, np.float32)}, opset=21)
    q = np.random.default_rng(0).integers(0, 30000, (4, 3, 6)).astype(dtype)
    exact(model, {"q": q}, reference(model, {"q": q})[0])


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_dequantize_to_narrow_floats(kind: Any) -> None:
    constants: dict[str, NDArray] = {"s": np.array(0.0137, kind), "z": np.array(3, np.uint8)}
    model = dequantize_model("uint8", constants, opset=21)
    q = integers(4, 3, 6)
    wanted = (q.astype(np.float32) - 3) * constants["s"].astype(np.float32)
    exact(model, {"q": q}, wanted.astype(kind))


def test_dequantize_to_a_given_type() -> None:
    constants: dict[str, NDArray] = {"s": np.array(0.0137, np.float32)}
    model = dequantize_model("uint8", constants, opset=23, output_dtype=TensorProto.FLOAT16)
    q = integers(4, 3, 6)
    exact(model, {"q": q}, (q.astype(np.float32) * constants["s"]).astype(np.float16))


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_contrib_operators(kind: Any, opset: int) -> None:
    """ONNX Runtime's own operators take float16 in models of any opset."""
    constants = {"s": np.array(0.05, kind), "z": np.array(77, np.uint8)}
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=MICROSOFT),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], domain=MICROSOFT),
    ]
    model = with_opset(
        make_model(nodes, [("x", element, [50])],
                   [("q", TensorProto.UINT8, [50]), ("y", element, [50])], constants),
        opset,
    )  # fmt: skip
    x = random(50).astype(kind)
    compare(model, {"x": x}, onnxruntime_run(model, {"x": x}), rtol=0, atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("values", ["normal", "zero", "positive", "negative", "tie"])
def test_dynamic_quantize_linear(values: str) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outputs = [("q", TensorProto.UINT8, [3, 8]), f32("s"), ("z", TensorProto.UINT8, [])]
    made: dict[str, NDArray] = {
        "normal": random(3, 8),
        "zero": np.zeros((3, 8)),
        "positive": 1 + np.abs(random(3, 8)),
        "negative": -1 - np.abs(random(3, 8)),
        "tie": np.linspace(-253, 257, 24).reshape(3, 8),
    }
    x = made[values].astype(np.float32)
    model = make_model([node], [f32("x", 3, 8)], outputs)
    feeds = {"x": x}
    compare(model, feeds, onnxruntime_run(model, feeds), rtol=0, atol=0)
    # The folded result is equal.
    add = helper.make_node("Add", ["s", "t"], ["y"])
    outputs = [*outputs, f32("y")]
    folded = make_model([node, add], [f32("t")], outputs, {"x": x})
    feeds = {"t": np.array(0, np.float32)}
    compare(folded, feeds, onnxruntime_run(folded, feeds), rtol=0, atol=0)


def linear(weight: NDArray, scale: NDArray, axis: int, transposed: bool) -> onnx.ModelProto:
    """x -> Gemm(x, DequantizeLinear(w), bias) + vector, optionally with a transposed w.

    Bias and vector are dequantised from one int32 constant.
    """
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=axis)]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["v"], ["vt"], perm=[1, 0]))
    nodes += [
        helper.make_node("DequantizeLinear", ["b", "t"], ["c"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "t"], ["d"], axis=0),
        helper.make_node("Gemm", ["x", "vt" if transposed else "v", "c"], ["sum"]),
        helper.make_node("Add", ["sum", "d"], ["y"]),
    ]
    constants: dict[str, NDArray] = {
        "w": weight, "s": scale, "z": np.zeros(scale.shape, weight.dtype),
        "b": np.arange(5).astype(np.int32), "t": np.full(5, 0.25, np.float32),
    }  # fmt: skip
    return make_model(nodes, [f32("x", 2, 7)], [f32("y", 2, 5)], constants)


@pytest.mark.parametrize("per_axis", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_weights_and_biases_stay_and_vectors_are_folded(transposed: bool, per_axis: bool) -> None:
    weight = integers(*((5, 7) if transposed else (7, 5)), dtype="int8")
    scale = np.linspace(0.01, 0.05, 5) if per_axis else np.array(0.02)
    model = linear(weight, scale.astype(np.float32), 0 if transposed else 1, transposed)
    feeds = {"x": random(2, 7)}
    imported = compare(model, feeds, reference(model, feeds), rtol=1e-5, atol=1e-5)
    # Only the product's int32 bias stays quantised until the product's region is decided.
    expected = {"dequantize": 2, "matmul": 1, "add": 2}
    assert operators(imported) == expected | ({"permute_dims": 1} if transposed else {})
    assert _products(model) == ["weight_only_matmul + add + add"]


def _products(model: onnx.ModelProto) -> list[str]:
    """Operators that templates take; products read 8-bit weights through all views."""
    decisions = tvm_hybrid.compile(model, num_threads=1).manifest.decisions
    return [decision.op for decision in decisions if decision.taken]


def test_a_reshaped_weight_keeps_its_axis() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=2),
        helper.make_node("Reshape", ["v", "shape"], ["m"]),
        helper.make_node("MatMul", ["x", "m"], ["y"]),
    ]
    constants = {"w": integers(2, 3, 5), "s": np.linspace(0.1, 0.5, 5, dtype=np.float32),
                 "shape": np.array([6, 5], np.int64)}  # fmt: skip
    model = make_model(nodes, [f32("x", 2, 6)], [f32("y", 2, 5)], constants)
    # 6 products of up to 255 * 0.5 * 3: float32 rounds each to 1e-5.
    feeds = {"x": random(2, 6)}
    compare(model, feeds, reference(model, feeds), rtol=1e-5, atol=1e-4)
    assert _products(model) == ["weight_only_matmul"]


def test_a_reshape_that_cuts_the_axis_of_scales_stays_behind() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=1),
        helper.make_node("Reshape", ["v", "shape"], ["m"]),
        helper.make_node("MatMul", ["x", "m"], ["y"]),
    ]
    constants = {"w": integers(2, 3, 5), "s": np.linspace(0.1, 0.5, 3, dtype=np.float32),
                 "shape": np.array([6, 5], np.int64)}  # fmt: skip
    model = make_model(nodes, [f32("x", 2, 6)], [f32("y", 2, 5)], constants)
    feeds = {"x": random(2, 6)}
    imported = compare(model, feeds, reference(model, feeds), rtol=1e-5, atol=1e-4)
    assert operators(imported)["dequantize"] == 1


def test_quantised_weights_are_computed_ahead() -> None:
    """Quantisation-aware training exports QuantizeLinear of float weights."""
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["v"], axis=1),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    constants = {"w": random(6, 5), "s": np.linspace(0.01, 0.05, 5, dtype=np.float32),
                 "z": np.zeros(5, np.int8)}  # fmt: skip
    model = make_model(nodes, [f32("x", 2, 6)], [f32("y", 2, 5)], constants)
    feeds = {"x": random(2, 6)}
    imported = compare(model, feeds, reference(model, feeds), rtol=1e-5, atol=1e-5)
    assert operators(imported) == {"dequantize": 1, "matmul": 1}


def test_parameters_of_run_time() -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=0)
    back = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=0)
    inputs = [f32("x", 3, 4), f32("s", 3), ("z", TensorProto.UINT8, [3])]
    model = make_model([node, back], inputs, [f32("y", 3, 4)])
    feeds = {"x": random(3, 4), "s": np.array([0.1, 0.2, 0.3], np.float32), "z": integers(3)}
    compare(model, feeds, reference(model, feeds), rtol=0, atol=0)


S, Z = np.float32(0.5), np.uint8(3)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (lambda: quantize_model({"s": np.ones(2, np.float32)}, "uint8"), ModelError,
         r"'culprit'.*'s'.*\(2,\).*axis 1 needs \(3,\)"),
        (lambda: quantize_model({"s": np.ones((4, 3), np.float32)}, "uint8"), ModelError,
         r"'culprit'.*'s'.*\(4, 3\)"),
        (lambda: quantize_model({"s": np.ones(3, np.float32), "z": np.array(Z)}, "uint8"),
         ModelError, r"'culprit'.*'z'.*\(3,\), its zero point the shape \(\)"),
        (lambda: quantize_model({"s": np.ones(3, np.float32)}, "uint8", axis=5), ModelError,
         "'culprit'.*axis 5"),
        (lambda: quantize_model({"s": np.ones((), np.int32)}, "uint8"), ModelError,
         "'culprit'.*y_scale.*int32"),
        (lambda: quantize_model({"s": np.array(S), "z": np.array(1.0, np.float32)}, "uint8"),
         ModelError, "'culprit'.*y_zero_point.*float"),
        (lambda: quantize_model({"s": np.array(S), "z": np.array(Z)}, "uint8", 21, output_dtype=3),
         ModelError, "'culprit'.*output_dtype INT8.*UINT8"),
        (lambda: quantize_model({"s": np.array(S)}, "uint8", 24, precision=TensorProto.INT8),
         ModelError, "'culprit'.*precision of INT8"),
        (lambda: dequantize_model("int8", {"s": np.array(S), "z": np.array(Z)}), ModelError,
         "'culprit'.*x_zero_point.*uint8"),
        (lambda: dequantize_model("int32", {"s": np.array(S), "z": np.array(2, np.int32)}),
         ModelError, "'culprit'.*int32.*0"),
        (lambda: dequantize_model("int8", {"s": np.ones(4, np.float32)}), ModelError,
         r"'culprit'.*'s'.*\(4,\)"),
        (lambda: dequantize_model("int8", {"s": np.ones((4, 2, 6), np.float32)}, 21, axis=1,
                                  block_size=1), ModelError, r"'culprit'.*needs \(4, 3, 6\)"),
        (lambda: dequantize_model("int8", {"s": np.ones((4, 2, 6), np.float32)}, 21, axis=1,
                                  block_size=-1), ModelError, r"'culprit'.*'s'"),
    ],
)  # fmt: skip
def test_broken_parameters(model: Any, error: type[Exception], message: str) -> None:
    broken = model()
    broken.graph.node[0].name = "culprit"
    with pytest.raises(error, match=message):
        import_onnx(broken)


@pytest.mark.parametrize("named", [False, True])
def test_a_zero_point_of_4_bits(named: bool) -> None:
    """Its values would fit 8 bits here, but the type sets the saturation limits."""
    how = {"output_dtype": TensorProto.INT4} if named else {}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="culprit", **how)
    back = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])
    model = make_model([node, back], [f32("x", 3)], [f32("y", 3)], {"s": np.array(S)})
    model.graph.initializer.append(helper.make_tensor("z", TensorProto.INT4, [], [1]))
    feeds = {"x": np.array([1.7, 100, -100], np.float32)}
    (got,) = run_imported(import_onnx(with_opset(model, 21)), feeds)
    assert got.tolist() == [1.5, 3.0, -4.5]


def test_far_values_fold_as_they_run() -> None:
    """Saturation precedes any conversion to an integer, folded or not."""
    x = awkward(0.25)
    constants: dict[str, NDArray] = {"s": np.array(0.25, np.float32), "z": np.array(7, np.uint8)}
    model = quantize_model(constants, "uint8")
    (ran,) = run_imported(import_onnx(model), {"x": x})
    nodes = [model.graph.node[0], helper.make_node("Max", ["y", "other"], ["out"])]
    other = ("other", TensorProto.UINT8, [4, 3, 6])
    folded = make_model(
        nodes, [other], [("out", TensorProto.UINT8, [4, 3, 6])], {**constants, "x": x}
    )
    imported = import_onnx(folded)
    assert operators(imported) == {"maximum": 1}
    (made,) = run_imported(imported, {"other": np.zeros((4, 3, 6), np.uint8)})
    np.testing.assert_array_equal(ran, made)
