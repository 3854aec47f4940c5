"""Floats of 4 and 8 bits, integers of 2 and 4: casts are bit-exact, data movement keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_hybrid
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.graph.narrow_types import encode

from .models import declared, make_model, random

SATURATING = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
FLOATS = (*SATURATING, "FLOAT8E8M0", "FLOAT4E2M1")
INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")
OPSET = onnx.defs.onnx_opset_version()


def dtype_of(name: str) -> np.dtype[Any]:
    """The ml_dtypes type of a name."""
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))


def model_of(
    nodes: list[onnx.NodeProto],
    feeds: dict[str, NDArray],
    outputs: dict[str, NDArray],
    constants: dict[str, NDArray] | None = None,
) -> onnx.ModelProto:
    """A model of the newest opset."""
    inputs = [declared(*item) for item in feeds.items()]
    model = make_model(nodes, inputs, [declared(*item) for item in outputs.items()], {}, OPSET)
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    model.graph.initializer.extend(tensors)
    model.ir_version = onnx.IR_VERSION
    return model


def run(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    """Runs a model through the whole compiler."""
    return tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).run(None, feeds)


def assert_same(got: NDArray, wanted: NDArray, what: str = "") -> None:
    """Compares type and bits; any NaN equals any other."""
    assert got.dtype == wanted.dtype, what
    if got.dtype.itemsize == 1:
        bits = [array.view(np.uint8) for array in (got, wanted)]
        same = bits[0] == bits[1]
        if got.dtype != bool and "int" not in got.dtype.name:
            same |= np.isnan(got.astype(np.float32)) & np.isnan(wanted.astype(np.float32))
        assert same.all(), what
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=what)


def floats() -> NDArray[np.float32]:
    """All bfloat16 numbers, their nearest neighbours, and random bits."""
    halves = np.arange(2**16, dtype=np.uint32) << 16
    rest = np.random.default_rng(0).integers(0, 2**32, 2**16, dtype=np.uint32)
    return np.concatenate([halves, halves + 1, halves - 1, rest]).view(np.float32)


def exact(values: NDArray[np.float32], name: str, saturate: bool, mode: str) -> NDArray:
    """The result of ONNX's own cast for each value."""
    dtype = dtype_of(name)
    with np.errstate(all="ignore"):
        if name == "FLOAT8E8M0":
            return numpy_helper.to_float8e8m0(values, saturate, mode).astype(dtype)
        if saturate and name in SATURATING:
            return numpy_helper.saturate_cast(values, dtype)
        return values.astype(dtype)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", FLOATS)
def test_tables(name: str, saturate: bool, mode: str) -> None:
    values = floats()
    codes = encode(values, TensorProto.DataType.Value(name), saturate, mode)
    assert_same(codes.view(dtype_of(name)), exact(values, name, saturate, mode))


@pytest.mark.sampled
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "float64", "int32"])
def test_casts_to_narrow_floats(source: str) -> None:
    """Casts in kernels, and casts of constants."""
    dtype = np.dtype(getattr(ml_dtypes, source, source))
    small = np.array([0.0, -0.0, 1.0625, 464.0, 465, -7.5, 1e5, 57344, 61440, 3, -1, 0.002])
    with np.errstate(all="ignore"):
        special = np.array([np.inf, -np.inf, np.nan]) if "float" in source else []
        values = np.concatenate([small, special, random(40) * 200]).astype(dtype)
    nodes, wanted, feeds = [], {}, {"x": values}
    for name in FLOATS:
        for saturate in (0, 1):
            output, kind = f"{name}_{saturate}", TensorProto.DataType.Value(name)
            nodes.append(helper.make_node("Cast", ["x"], [output], to=kind, saturate=saturate))
            wanted[output] = exact(values.astype(np.float32), name, bool(saturate), "up")
    results = run(model_of(nodes, feeds, wanted), feeds)
    for (name, array), got in zip(wanted.items(), results, strict=True):
        assert_same(got, array, name)
    for (name, array), got in zip(
        wanted.items(), run(model_of(nodes, {}, wanted, feeds), {}), strict=True
    ):
        assert_same(got, array, name)


def test_casts_of_dynamic_sizes() -> None:
    """The layer behind the casts needs the rank, which ONNX does not infer."""
    weights = {"w": random(1, 4, 3), "r": random(1, 4, 4)}
    narrow = TensorProto.FLOAT8E5M2
    nodes = [
        helper.make_node("Cast", ["x"], ["codes"], to=narrow),
        helper.make_node("Cast", ["codes"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("RNN", ["y", "w", "r"], ["z"], hidden_size=4),
    ]
    x = random(5, 2, 3)
    declared = [("x", TensorProto.FLOAT, ("steps", "batch", 3))]
    model = make_model(nodes, declared, [("z", TensorProto.FLOAT, None)], weights, opset=19)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    rounded = x.astype(ml_dtypes.float8_e5m2).astype(np.float32)
    plain = make_model(nodes[2:], [("y", *declared[0][1:])], [("z", 1, None)], weights, opset=19)
    wanted = ReferenceEvaluator(plain).run(None, {"y": rounded})[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, 0, 1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("constant", [False, True])
def test_casts_from_narrow_types(constant: bool) -> None:
    """Every code of every type, cast to float32, float16, a narrow float and an integer."""
    nodes, feeds, wanted = [], {}, {}
    for name in (*FLOATS, *INTEGERS):
        dtype = dtype_of(name)
        bits = ml_dtypes.iinfo(dtype).bits if name in INTEGERS else ml_dtypes.finfo(dtype).bits
        codes = np.arange(2**bits).astype(np.uint8)
        array = codes.astype(dtype) if name in INTEGERS else codes.view(dtype)
        feeds[name] = array
        wide = array.astype(np.float32)
        with np.errstate(all="ignore"):
            results = {
                "FLOAT": wide,
                "FLOAT16": wide.astype(np.float16),
                "FLOAT8E5M2": exact(wide, "FLOAT8E5M2", True, "up"),
                name: array,
            }
        if name in INTEGERS:
            results["INT32"] = array.astype(np.int32)
        for target, result in results.items():
            kind = TensorProto.DataType.Value(target)
            nodes.append(helper.make_node("Cast", [name], [f"{name}_{target}"], to=kind))
            wanted[f"{name}_{target}"] = result
    inputs = {} if constant else feeds
    model = model_of(nodes, inputs, wanted, feeds if constant else {})
    for (name, array), got in zip(wanted.items(), run(model, inputs), strict=True):
        assert_same(got, array, name)


@pytest.mark.parametrize("source", ["float32", "int64", "int8"])
def test_casts_to_narrow_integers(source: str) -> None:
    """Casts keep the low bits."""
    values = np.array([0, 1, -1, 7, 8, -8, -9, 15, 16, 100, -100, 3, 2, -3]).astype(source)
    fraction = np.float32(0.75) if source == "float32" else 0
    feeds = {"x": (values + fraction * np.sign(values)).astype(source)}
    nodes = [
        helper.make_node("Cast", ["x"], [name], to=TensorProto.DataType.Value(name))
        for name in INTEGERS
    ]
    wanted = {name: values.astype(np.int64).astype(dtype_of(name)) for name in INTEGERS}
    for array, got in zip(wanted.values(), run(model_of(nodes, feeds, wanted), feeds), strict=True):
        assert_same(got, array)


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "INT4"])
def test_moves(name: str) -> None:
    """Values are moved and then cast; every input type is also an output type."""
    array = np.array([[1, 2, -3], [-4, 5, 0]]).astype(dtype_of(name))
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Reshape", ["t", "s"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["c"], ["constant"]),
    ]
    flat = array.T.reshape(-1)
    wanted = {"r": flat, "y": flat.astype(np.float32), "same": array, "constant": flat}
    constants = {"s": np.array([6]), "c": flat}
    results = run(model_of(nodes, {"x": array}, wanted, constants), {"x": array})
    for expected, got in zip(wanted.values(), results, strict=True):
        assert_same(got, expected)


@pytest.mark.parametrize("name", ["FLOAT8E5M2", "INT4"])
def test_arithmetic_is_refused(name: str) -> None:
    array = np.ones(3).astype(dtype_of(name))
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": array}, {"y": array})
    with pytest.raises(UnsupportedOperatorError, match=f"cannot compute with {name}"):
        import_onnx(model)


def test_other_arrays_are_refused() -> None:
    array = np.ones(3, ml_dtypes.int4)
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = model_of([node], {"x": array}, {"y": np.ones(3, np.float32)})
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    assert [item.type for item in session.get_inputs()] == ["tensor(int4)"]
    with pytest.raises(FeedError, match=r"expected x: int4\[3\], got x: int8\[3\]"):
        session.run(None, {"x": array.astype(np.int8)})


def test_a_library(tmp_path: Path) -> None:
    """The library has the model's types; prepared tensors hold bits."""
    array = np.array([1.5, -2, 448], ml_dtypes.float8_e4m3fn)
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E5M2)
    wanted = array.astype(ml_dtypes.float8_e5m2)
    executable = tvm_hybrid.compile(
        model_of([node], {"x": array}, {"y": wanted}), num_threads=1, records=[]
    )
    loaded = tvm_hybrid.load(executable.export(tmp_path / "model.so"))
    assert [info.dtype for info in (*loaded.inputs, *loaded.outputs)] == [
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    (got,) = tvm_hybrid.InferenceSession(loaded).run(None, {"x": array})
    assert_same(got, wanted)
    (tensor,) = loaded.run(array)
    np.testing.assert_array_equal(tensor.numpy(), wanted.view(np.uint8))


# Shapes of scale and zero point, axis, block size.
LAYOUTS = {
    "tensor": ((), 1, 0),
    "axis": ((3,), -2, 0),
    "blocks": ((2, 3, 2), 2, 4),  # blocks of 4 and of 3
}


@pytest.mark.sampled
@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantize(layout: str) -> None:
    """By ONNX's formula, with a shorter last block."""
    shape, axis, block = LAYOUTS[layout]
    x = random(2, 3, 7) * np.float32(40)
    scale = (np.abs(random(*shape, seed=1)) + np.float32(0.5)).astype(np.float32)
    nodes, wanted, constants = [], {}, {"s": scale}
    for name in (*INTEGERS, *SATURATING, "FLOAT4E2M1", "INT8", "UINT16"):
        zero = 1 if "INT" in name else 0
        constants[f"z{name}"] = np.full(shape, zero).astype(dtype_of(name))
        nodes.append(
            helper.make_node(
                "QuantizeLinear", ["x", "s", f"z{name}"], [name], axis=axis, block_size=block
            )
        )
        full = np.repeat(scale, block, axis)[..., :7] if block else scale
        if layout == "axis":
            full = scale[:, None]
        quotient = (x / full).astype(np.float32)
        if "INT" in name:
            limits = ml_dtypes.iinfo(dtype_of(name))
            rounded = np.clip(np.rint(quotient) + zero, int(limits.min), int(limits.max))
            wanted[name] = rounded.astype(np.int32).astype(dtype_of(name))
        else:
            wanted[name] = exact(quotient, name, True, "up")
    results = run(model_of(nodes, {"x": x}, wanted, constants), {"x": x})
    for (name, expected), got in zip(wanted.items(), results, strict=True):
        assert_same(got, expected, name)


@pytest.mark.sampled
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dequantize(layout: str) -> None:
    """Products of few bits: exact in float32."""
    shape, axis, block = LAYOUTS[layout]
    scale = (np.abs(random(*shape, seed=1)) + np.float32(0.5)).astype(np.float16)
    full = np.repeat(scale, block, axis)[..., :7] if block else scale
    if layout == "axis":
        full = scale[:, None]
    nodes, feeds, wanted = [], {}, {}
    for name in (*INTEGERS, *SATURATING, "FLOAT4E2M1"):
        feeds[name] = (random(2, 3, 7) * np.float32(3)).astype(dtype_of(name))
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [name, "s"], [f"y{name}"], axis=axis, block_size=block
            )
        )
        product = feeds[name].astype(np.float32) * full.astype(np.float32)
        wanted[f"y{name}"] = product.astype(np.float16)
    results = run(model_of(nodes, feeds, wanted, {"s": scale}), feeds)
    for (name, expected), got in zip(wanted.items(), results, strict=True):
        assert_same(got, expected, name)


def test_quantisation_of_dynamic_sizes() -> None:
    """A scale for each row; one program takes any number of columns."""
    scale = np.array([0.5, 2, 3], np.float32)
    constants = {"s": scale, "z": np.zeros(3, dtype_of("FLOAT8E4M3FN"))}
    nodes = [
        helper.make_node(f"{name}Linear", [value, "s", "z"], [result], axis=0)
        for name, value, result in (("Quantize", "x", "q"), ("Dequantize", "q", "y"))
    ]
    x = random(3, 7) * np.float32(40)
    model = model_of(nodes, {"x": x}, {"y": x}, constants)
    for item in (*model.graph.input, *model.graph.output):
        item.type.tensor_type.shape.dim[1].dim_param = "n"
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    rows = scale[:, None]
    for part in (x, x[:, :4]):
        wanted = exact(part / rows, "FLOAT8E4M3FN", True, "up").astype(np.float32) * rows
        np.testing.assert_array_equal(session.run(None, {"x": part})[0], wanted)


@pytest.mark.parametrize("precision", ["FLOAT16", "FLOAT"])
def test_precision_of_the_quotient(precision: str) -> None:
    x = random(64).astype(np.float16)
    kind = TensorProto.DataType.Value(precision)
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], precision=kind,
                            output_dtype=TensorProto.INT8)  # fmt: skip
    scale = {"s": np.array(0.03, np.float16)}
    model = model_of([node], {"x": x}, {"y": np.empty(64, np.int8)}, scale)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert_same(run(model, {"x": x})[0], expected)
