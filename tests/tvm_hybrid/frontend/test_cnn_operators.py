"""Operators of convolutional models against ONNX Runtime, many in one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tvm_hybrid.errors import UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.ops.resize_taps import Resizing, axis_taps

from .models import f32, make_model, onnxruntime_run, operators, random, run_imported

# Name of the input, operator, constants, attributes.
Case = tuple[str, str, dict[str, NDArray], dict[str, Any]]
SHAPES = {
    "x": (2, 6, 9, 11),
    "line": (2, 6, 9),
    "cube": (1, 4, 5, 6, 4),
    "deep": (2, 12, 3, 4),
    "vector": (2, 6),
    "point": (2, 6, 1, 1),
}
EMPTY = np.zeros(0, np.float32)


def ints(*values: int) -> NDArray:
    return np.array(values, np.int64)


def case(source: str, op_type: str, /, *constants: NDArray, **attributes: Any) -> Case:
    return source, op_type, {f"c{i}": c for i, c in enumerate(constants)}, attributes


def scales(*values: float) -> tuple[NDArray, NDArray]:
    return EMPTY, np.array(values, np.float32)


CONVOLUTIONS = [
    case("x", "Conv", random(6, 2, 3, 2), random(6), group=3, pads=[1, 0, 2, 1], strides=[2, 1],
         dilations=[1, 2]),
    case("x", "Conv", random(4, 6, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
    case("x", "Conv", random(6, 1, 3, 3), random(6), group=6, auto_pad="SAME_UPPER"),
    case("line", "Conv", random(4, 6, 3), random(4), pads=[1, 2], strides=[2]),
    case("line", "Conv", random(6, 1, 3), group=6, dilations=[2], auto_pad="VALID"),
    case("cube", "Conv", random(3, 4, 2, 3, 2), random(3), pads=[0, 1, 0, 1, 0, 1],
         strides=[1, 2, 1]),
    case("x", "ConvTranspose", random(6, 4, 3, 3), random(4), strides=[2, 2], pads=[1, 1, 1, 1],
         output_padding=[1, 1]),
    case("x", "ConvTranspose", random(6, 2, 3, 3), strides=[2, 2], group=2, auto_pad="SAME_UPPER"),
    case("line", "ConvTranspose", random(6, 4, 3), random(4), strides=[2], pads=[1, 0]),
]  # fmt: skip
POOLS = [
    case("x", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("x", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("x", "MaxPool", kernel_shape=[3, 2], dilations=[2, 3]),
    case("x", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("line", "MaxPool", kernel_shape=[3], strides=[2], pads=[0, 1]),
    case("cube", "MaxPool", kernel_shape=[2, 3, 2], strides=[2, 1, 2]),
    case("x", "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("x", "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 0, 1], count_include_pad=1),
    case("x", "AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 1, 0, 0]),
    case("cube", "AveragePool", kernel_shape=[2, 3, 2], strides=[2, 1, 2]),
    case("x", "LpPool", kernel_shape=[3, 3], strides=[2, 2], p=2),
    case("x", "GlobalAveragePool"),
    case("cube", "GlobalMaxPool"),
    *(case("x", "GlobalLpPool", p=p) for p in (1, 2, 3)),
]  # fmt: skip
NORMS = [
    case("x", "InstanceNormalization", random(6), random(6)),
    case("x", "BatchNormalization", random(6), random(6), random(6), np.abs(random(6))),
    case("x", "LRN", size=3),
    case("x", "LRN", size=5, alpha=0.02, beta=0.6, bias=2.0),
    case("x", "LpNormalization", axis=1, p=2),
    case("x", "LpNormalization", axis=-1, p=1),
    case("vector", "Softmax", axis=1),
    case("x", "Softmax", axis=1),
    case("x", "LogSoftmax", axis=1),
]
ACTIVATIONS = [
    *(case("x", op_type) for op_type in (
        "HardSwish", "HardSigmoid", "Elu", "Selu", "LeakyRelu", "ThresholdedRelu", "Softplus",
        "Softsign", "Celu", "Mish", "Relu", "Sigmoid", "Tanh", "Shrink")),
    case("x", "HardSigmoid", alpha=0.3, beta=0.4),
    case("x", "Elu", alpha=0.3),
    case("x", "Selu", alpha=1.4, gamma=0.7),
    case("x", "LeakyRelu", alpha=1.3),
    case("x", "ThresholdedRelu", alpha=-0.4),
    case("x", "Shrink", lambd=0.4, bias=0.2),
    *(case("x", "PRelu", slope) for slope in (
        random(6, 1, 1), random(1), random(1, 6, 1, 1), random(6, 9, 11), random(11))),
]  # fmt: skip
MOVES = [
    *(case("x", "Pad", ints(0, 0, 1, 2, 0, 0, 2, 1), mode=mode)
      for mode in ("constant", "reflect", "edge")),
    case("x", "Pad", ints(0, 1, 1, 2, 0, 0, 2, 1), np.array(1.5, np.float32)),
    case("x", "Pad", ints(0, 0, -1, 2, 0, 0, 2, -1)),
    case("x", "Pad", ints(0, 0, -1, -2, 0, 0, 0, -1)),
    case("deep", "DepthToSpace", blocksize=2, mode="DCR"),
    case("deep", "DepthToSpace", blocksize=2, mode="CRD"),
    case("deep", "SpaceToDepth", blocksize=1),
    case("x", "Concat", random(2, 3, 9, 11), axis=1),
    case("x", "Slice", ints(1, 2), ints(100, -1), ints(1, -1), ints(2, 1)),
    case("x", "Flatten", axis=2),
    case("point", "Squeeze", ints(2, 3)),
    case("point", "Expand", ints(2, 6, 3, 4)),
]  # fmt: skip
RESIZES = [
    *(case("x", "Resize", *scales(1, 1, 2, 1.5), mode="nearest", nearest_mode=rounding,
           coordinate_transformation_mode=coordinates)
      for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
      for coordinates in ("asymmetric", "half_pixel")),
    *(case("x", "Resize", EMPTY, EMPTY, ints(2, 6, 18, 16), mode="nearest", nearest_mode=rounding,
           coordinate_transformation_mode="align_corners")
      for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    *(case("x", "Resize", *scales(1, 1, factor, 0.6), mode=mode,
           coordinate_transformation_mode=coordinates)
      for mode, factor in (("linear", 2), ("linear", 1.7), ("cubic", 1.7))
      for coordinates in ("asymmetric", "pytorch_half_pixel")),
    *(case("x", "Resize", EMPTY, EMPTY, ints(2, 6, rows, 6), mode=mode,
           coordinate_transformation_mode="align_corners")
      for mode, rows in (("linear", 18), ("linear", 15), ("cubic", 15))),
    *(case("x", "Resize", *scales(1, 1, 2, 3), mode=mode,
           coordinate_transformation_mode="align_corners") for mode in ("linear", "cubic")),
    case("x", "Resize", *scales(1, 1, 1.3, 0.7), mode="cubic", exclude_outside=1),
    case("x", "Resize", EMPTY, EMPTY, ints(2, 6, 5, 20), mode="linear"),
    case("x", "Resize", EMPTY, EMPTY, ints(2, 6, 18, 22), mode="nearest"),
    *(case("x", "Resize", EMPTY, EMPTY, ints(2, 6, 9, 1), mode=mode,
           coordinate_transformation_mode=coordinates)
      for mode in ("nearest", "linear", "cubic")
      for coordinates in ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")),
    case("line", "Resize", *scales(1, 1, 2), mode="linear"),
    case("x", "Resize", np.array([0, 0, 0.2, -0.1, 1, 1, 0.8, 1.2], np.float32),
         np.array([1, 1, 1.5, 2], np.float32), mode="linear", extrapolation_value=7.0,
         coordinate_transformation_mode="tf_crop_and_resize"),
]  # fmt: skip
OF_OPSET_19 = [
    case("x", "Pad", ints(0, 0, 1, 2, 0, 0, 2, 1), mode="wrap"),
    case("x", "Pad", ints(1, 2, 2, 1), np.array(0, np.float32), ints(2, 3)),
    case("x", "AveragePool", kernel_shape=[2, 2], dilations=[2, 3]),
    case("x", "Resize", *scales(2, 1.5), mode="linear", axes=[2, 3],
         coordinate_transformation_mode="half_pixel_symmetric"),
    *(case("x", "Resize", EMPTY, EMPTY, ints(20, 5), mode=mode, axes=[2, 3], antialias=1)
      for mode in ("linear", "cubic")),
    *(case("x", "Resize", EMPTY, EMPTY, ints(20, 5), axes=[3, 2], keep_aspect_ratio_policy=policy)
      for policy in ("not_larger", "not_smaller")),
    case("x", "LpPool", kernel_shape=[3, 3], p=3, ceil_mode=1, strides=[2, 2]),
    case("x", "GlobalLpPool", p=2),
]  # fmt: skip
OF_OPSET_10 = [
    case("x", "Resize", np.array([1, 1, 2, 2.5], np.float32), mode="nearest"),
    case("x", "Resize", np.array([1, 1, 2, 1.5], np.float32), mode="linear"),
    case("x", "Pad", pads=[0, 0, 1, 2, 0, 0, 2, 1], mode="reflect"),
    case("x", "Pad", pads=[0, 0, 1, 2, 0, 0, 2, 1], value=0.5),
    case("x", "Clip", min=0.0, max=6.0),
    case("x", "HardSigmoid"),
    case("point", "Softmax", axis=1),
    case("x", "Softmax", axis=2),
    case("x", "LRN", size=3),
]
OF_OPSET_9 = [
    case("x", "Upsample", np.array([1, 1, 2, 3], np.float32), mode="nearest"),
    case("x", "Upsample", np.array([1, 1, 2, 2], np.float32), mode="linear"),
    case("deep", "DepthToSpace", blocksize=2),
]


def model_of(cases: Sequence[Case], opset: int) -> onnx.ModelProto:
    """A model with one output for each case."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, NDArray] = {}
    for number, (source, op_type, given, attributes) in enumerate(cases):
        names = [f"{number}/{name}" for name in given]
        constants |= dict(zip(names, given.values(), strict=True))
        nodes.append(helper.make_node(op_type, [source, *names], [f"y{number}"], **attributes))
    used = dict.fromkeys(item[0] for item in cases)
    model = make_model(nodes, [f32(name, *SHAPES[name]) for name in used], [], constants, opset)
    known = {item.name: item for item in onnx.shape_inference.infer_shapes(model).graph.value_info}
    for number in range(len(cases)):
        found = known.get(f"y{number}") or helper.make_tensor_value_info(f"y{number}", 1, None)
        model.graph.output.append(found)
    return model


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("cases", "opset"),
    [
        (CONVOLUTIONS, 17),
        (POOLS, 17),
        (NORMS, 17),
        (ACTIVATIONS, 18),
        (MOVES, 17),
        (RESIZES, 17),
        (OF_OPSET_19, 19),
        (OF_OPSET_10, 10),
        (OF_OPSET_9, 9),
    ],
    ids=[
        *("convolutions", "pools", "norms", "activations", "moves", "resizes"),
        *("opset19", "opset10", "opset9"),
    ],
)
def test_against_onnx_runtime(cases: Sequence[Case], opset: int) -> None:
    model = model_of(cases, opset)
    feeds = {item.name: random(*SHAPES[item.name]) for item in model.graph.input}
    wanted = onnxruntime_run(model, feeds)
    imported = import_onnx(model)
    for item, expected, got in zip(cases, wanted, run_imported(imported, feeds), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape, item
        # Sums of at most 60 products of values near 2, and functions of them: 60 * 4 * 2^-23.
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=3e-5, err_msg=str(item[1:]))
    assert "call_tir" not in operators(imported)  # passes can read every operator


def test_response_normalization_of_an_even_size() -> None:
    """ONNX Runtime refuses even sizes: channel c sums channels c - 1 to c + 2."""
    x = random(*SHAPES["line"])
    model = model_of([case("line", "LRN", size=4, alpha=0.4, beta=0.75)], 17)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 2), (0, 0)))
    sums = sum(squares[:, i : i + 6] for i in range(4))
    wanted = x / (1 + 0.1 * sums) ** 0.75
    np.testing.assert_allclose(run_imported(import_onnx(model), {"line": x})[0], wanted, rtol=1e-5)


def test_places_of_maxima_are_computed_if_somebody_reads_them() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], name="pool", kernel_shape=[2, 2])
    outputs = [f32("y", None, None, None, None)]
    model = make_model([node], [f32("x", *SHAPES["x"])], outputs)
    assert operators(import_onnx(model)) == {"nn.max_pool2d": 1}
    model.graph.output.append(helper.make_tensor_value_info("places", 7, None))
    # Planes of an image are rows along one axis, so only views are needed.
    assert operators(import_onnx(model)) == {"nn.max_pool2d": 1, "call_tir": 1, "reshape": 2}


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_whole_factors_are_one_operator(mode: str, coordinates: str) -> None:
    """Resizing by integer factors is fast; no other form may replace it."""
    item = case("x", "Resize", *scales(1, 1, 2, 2), mode=mode,
                coordinate_transformation_mode=coordinates)  # fmt: skip
    assert operators(import_onnx(model_of([item], 17))) == {"image.resize2d": 1}


def test_a_resize_to_the_same_size_is_none() -> None:
    same = case("x", "Resize", EMPTY, EMPTY, ints(*SHAPES["x"]), mode="cubic")
    assert operators(import_onnx(model_of([same], 17))) == {}


def test_aligned_corners_of_no_whole_size_are_refused() -> None:
    """ONNX's reference puts the corner outside of the result; ONNX Runtime does not."""
    item = case("x", "Resize", *scales(1, 1, 2, 0.6), mode="linear",
                coordinate_transformation_mode="align_corners")  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match=r"no whole sizes.*give sizes"):
        import_onnx(model_of([item], 17))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "bfloat16"])
def test_resizes_of_other_types(dtype: str) -> None:
    """Computed in wider floats and rounded once, ties to even; cubics are saturated.

    Weights are multiples of powers of two, so that sums are exact.
    """
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = (random(*SHAPES["x"]).astype(np.float64) * 100).round()
    x = x.clip(0 if dtype == "uint8" else -128, 127)
    if dtype == "int32":
        x[0, 0, 4:, :4], x[1, 0, 4:, 5:] = 2**31 - 1, -(2**31)
    x, code = x.astype(kind), helper.np_dtype_to_tensor_dtype(kind)
    constants = {"s": np.array([1, 1, 2, 4], np.float32)}
    nodes = [
        helper.make_node("Resize", ["x", "", "s"], [mode], mode=mode)
        for mode in ("linear", "cubic", "nearest")
    ]
    outputs = [(mode, code, (2, 6, 18, 44)) for mode in ("linear", "cubic", "nearest")]
    model = make_model(nodes, [("x", code, x.shape)], outputs, constants, 19)
    model.ir_version = 10
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    for item in (*wide.graph.input, *wide.graph.output):
        item.type.tensor_type.elem_type = TensorProto.DOUBLE
    exact = ReferenceEvaluator(wide).run(None, {"x": x.astype(np.float64)})
    for got, wanted in zip(run_imported(import_onnx(model), {"x": x}), exact, strict=True):
        assert got.dtype == kind
        if "int" in dtype:
            limits = np.iinfo(kind)
            wanted = np.rint(wanted).clip(float(limits.min), float(limits.max))
            np.testing.assert_array_equal(got.astype(np.float64), wanted)
        else:
            rounded = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
            bound = {"rtol": rounded, "atol": 2.0**-12}
            np.testing.assert_allclose(got.astype(np.float64), wanted, **bound)


def test_weights_of_taps_add_up() -> None:
    for mode in ("linear", "cubic"):
        for scale in (0.3, 1.0, 2.7):
            for antialias in (False, True):
                taps = axis_taps(Resizing(mode, antialias=antialias), 20, int(20 * scale), scale)
                np.testing.assert_allclose(taps.weight.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [{"mode": "mystery"}, {"nearest_mode": "x"}, {"coordinate_transformation_mode": "x"}],
    ids=str,
)
def test_unknown_forms_of_resize_are_named(attributes: dict[str, str]) -> None:
    item = case("x", "Resize", *scales(1, 1, 2, 1.5), **attributes)
    nodes = [helper.make_node(item[1], ["x", "r", "s"], ["y"], **attributes)]
    constants = {"r": EMPTY, "s": item[2]["c1"]}
    model = make_model(nodes, [f32("x", *SHAPES["x"])], [f32("y", *[None] * 4)], constants)
    with pytest.raises(UnsupportedOperatorError, match="unknown"):
        import_onnx(model)
