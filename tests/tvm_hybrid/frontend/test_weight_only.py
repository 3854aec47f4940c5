"""Weights of at most 8 bits with a scale per block: compared with ONNX Runtime, and kept packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tvm_hybrid
from tvm_hybrid.errors import ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import compare, f32, i64, integers, make_model, onnxruntime_run, operators, random
from .test_integer_products import constants_of
from .test_quantize_linear import reference, with_opset

MICROSOFT = "com.microsoft"


def packed(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Packs numbers along the last axis, the first number in the lowest bits."""
    per_byte = 8 // bits
    short = -numbers.shape[-1] % per_byte
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, short)])
    parts = padded.reshape(*padded.shape[:-1], -1, per_byte).astype(np.uint32)
    return (parts << (bits * np.arange(per_byte))).sum(-1).astype(np.uint8)


def nbits_model(
    bits: int, block: int, depth: int, zero_points: str, bias: bool, flat: bool = False
) -> tuple[onnx.ModelProto, NDArray[np.float64]]:
    """x[2, 3, depth] -> MatMulNBits -> y[2, 3, 24], and the dequantised weight."""
    rng = np.random.default_rng(7)
    columns, blocks = 24, -(-depth // block)
    numbers = rng.integers(0, 1 << bits, (columns, blocks, block)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    offsets = rng.integers(0, 1 << bits, (columns, blocks)).astype(np.uint8)
    constants: dict[str, NDArray] = {"w": packed(numbers, bits), "s": scales}
    used: NDArray[Any] = np.full((columns, blocks), 1 << (bits - 1))
    if zero_points == "packed":
        used, constants["z"] = offsets, packed(offsets, bits)
    elif zero_points == "float":
        used = offsets + np.float32(0.25)
        constants["z"] = used
    if flat:
        constants = {k: v if k == "w" else v.reshape(-1) for k, v in constants.items()}
    if bias:
        constants["b"] = random(columns)
    names = ["x", "w", "s", "z" if "z" in constants else "", "", "b" if bias else ""]
    node = helper.make_node("MatMulNBits", names, ["y"], name="culprit", domain=MICROSOFT,
                            K=depth, N=columns, bits=bits, block_size=block)  # fmt: skip
    model = make_model([node], [f32("x", 2, 3, depth)], [f32("y", 2, 3, columns)], constants)
    weight = (numbers.astype(np.float64) - used[..., None]) * scales[..., None]
    return model, weight.reshape(columns, -1)[:, :depth].T


@pytest.mark.sampled
@pytest.mark.parametrize("zero_points", ["none", "packed", "float"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("bits", "block", "depth"), [(4, 16, 64), (4, 32, 96), (4, 32, 80), (8, 32, 64), (2, 16, 64)]
)
def test_matmul_nbits(bits: int, block: int, depth: int, bias: bool, zero_points: str) -> None:
    model, weight = nbits_model(bits, block, depth, zero_points, bias)
    x = random(2, 3, depth)
    wanted = x.astype(np.float64) @ weight
    if bias:
        wanted += random(24)
    # Every product and sum rounds float32 once: depth * 2^-23 of sums below 100 * |weight| is far
    # above the measured error.
    bound = depth * 2.0**-23 * float(np.abs(x).max() * np.abs(weight).sum(0).max())
    imported = compare(model, {"x": x}, [wanted.astype(np.float32)], rtol=0, atol=bound)
    found = operators(imported)
    assert found["matmul"] == found["multiply"] == 1
    assert found["subtract"] == (zero_points != "none")
    # One byte per number; only scales and zero points are floats.
    floats = sum(np.prod(shape) for shape, dtype in constants_of(imported) if dtype == "float32")
    assert floats <= 2 * 24 * -(-depth // block) + 24
    bytes_ = [(s, t) for s, t in constants_of(imported) if t in ("int8", "uint8") and len(s) == 3]
    assert [t for _, t in bytes_] == ["int8" if zero_points == "none" else "uint8"]
    assert bytes_[0][0] == (-(-depth // block), block, 24)


@pytest.mark.parametrize("zero_points", ["none", "packed"])
def test_matmul_nbits_as_onnxruntime_computes_it(zero_points: str) -> None:
    model, weight = nbits_model(4, 32, 96, zero_points, bias=False)
    x = random(2, 3, 96)
    bound = 96 * 2.0**-23 * float(np.abs(x).max() * np.abs(weight).sum(0).max())
    compare(model, {"x": x}, onnxruntime_run(model, {"x": x}), rtol=0, atol=bound)


@pytest.mark.parametrize(("cpu", "narrow"), [("skylake-avx512", True), ("haswell", False)])
def test_scales_that_float16_holds_stay_so(cpu: str, narrow: bool) -> None:
    """On AVX-512: four blocks of scales for 32 columns take half the bytes."""
    model, _ = nbits_model(4, 32, 128, "none", bias=False)
    (scales,) = (each for each in model.graph.initializer if each.name == "s")
    values = onnx.numpy_helper.to_array(scales).astype(np.float16).astype(np.float32)

    def constant_bytes(array: NDArray[np.float32]) -> int:
        scales.CopyFrom(onnx.numpy_helper.from_array(array, "s"))
        made = tvm_hybrid.compile(model, target=cpu, num_threads=1, records=[])
        (decision,) = made.explain().taken
        assert ("float16" in decision.workload) == (array is values)
        return made.constant_bytes()

    wide = constant_bytes(np.nextafter(values, np.float32(1)))
    assert wide - constant_bytes(values) == (4 * 32 * 2 if narrow else 0)


@pytest.mark.isa("avx512_vnni")
@pytest.mark.parametrize("zero_points", ["none", "packed", "float"])
def test_accuracy_levels(zero_points: str) -> None:
    """Level 4 permits int8 activations, with an error of 1/254 of a block's largest number.

    ONNX Runtime uses equal integers and block scales.
    """
    model, weight = nbits_model(4, 32, 256, zero_points, bias=False)
    x = random(2, 3, 256)
    wanted = x.astype(np.float64) @ weight
    errors = {}
    for level in (0, 1, 4):
        leveled = changed(model, accuracy_level=level)
        session = tvm_hybrid.InferenceSession(leveled.SerializeToString(), num_threads=1)
        (kernel,) = (each.kernel for each in session.explain().taken)
        assert ("s8u8s32" in kernel) == (level == 4), kernel
        assert ("f32" in kernel) == (level != 4), kernel
        result = session.run(None, {"x": x})[0]
        errors[level] = float(np.abs(result - wanted).max())
        if level != 4 or zero_points != "float":  # ONNX Runtime has no zero points in float there
            found = onnxruntime_run(leveled, {"x": x})[0]
            np.testing.assert_allclose(result, found, rtol=0, atol=1e-4)
    assert errors[0] == errors[1] < 1e-4
    bound = np.abs(x).max() / 254 * np.abs(weight).sum(0).max()
    assert 1e-2 < errors[4] < bound


def test_activations_stay_f32_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_HYBRID_ISA", "avx2")
    model, _ = nbits_model(4, 32, 256, "none", bias=False)
    leveled = changed(model, accuracy_level=4)
    session = tvm_hybrid.InferenceSession(leveled.SerializeToString(), num_threads=1)
    (kernel,) = (each.kernel for each in session.explain().taken)
    assert "f32" in kernel and "s8u8s32" not in kernel, kernel


def test_flat_scales_and_zero_points() -> None:
    """Flat arrays, as older exporters store them."""
    model, weight = nbits_model(4, 32, 64, "packed", bias=False, flat=True)
    x = random(2, 3, 64)
    bound = 64 * 2.0**-23 * float(np.abs(x).max() * np.abs(weight).sum(0).max())
    wanted = (x.astype(np.float64) @ weight).astype(np.float32)
    compare(model, {"x": x}, [wanted], rtol=0, atol=bound)


def changed(model: onnx.ModelProto | None = None, **change: Any) -> onnx.ModelProto:
    """A MatMulNBits with a changed attribute, input or constant."""
    model = model or nbits_model(4, 32, 64, "packed", bias=False)[0]
    node = model.graph.node[0]
    for key, value in change.items():
        if key == "g_idx":
            node.input[4] = "z"
        elif isinstance(value, np.ndarray):
            found = next(item for item in model.graph.initializer if item.name == key)
            found.CopyFrom(onnx.numpy_helper.from_array(value, key))
        else:
            kept = [item for item in node.attribute if item.name != key]
            attributes = [*kept, helper.make_attribute(key, value)]
            del node.attribute[:]
            node.attribute.extend(attributes)
    return model


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"g_idx": True}, UnsupportedOperatorError, "'culprit'.*g_idx"),
        ({"bits": 3}, UnsupportedOperatorError, "'culprit'.*3 bits"),
        ({"weight_prepacked": 1}, UnsupportedOperatorError, "'culprit'.*GPU"),
        ({"N": 25}, ModelError, r"'culprit'.*'w'.*\(25, 2, 16\)"),
        ({"s": np.ones((24, 3), np.float32)}, ModelError, r"'culprit'.*'s'.*\(24, 3\)"),
        ({"z": np.ones((24, 2), np.uint8)}, ModelError, r"'culprit'.*'z'.*\(24, 1\)"),
    ],
    ids=str,
)
def test_broken_nbits(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        import_onnx(changed(**change))


def test_a_weight_of_run_time_is_refused() -> None:
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], name="culprit",
                            domain=MICROSOFT, K=32, N=4, block_size=32)  # fmt: skip
    inputs = [f32("x", 2, 32), ("w", TensorProto.UINT8, [4, 1, 16]), f32("s", 4, 1)]
    message = r"'culprit'.*'w'.*weight.* must be constant"
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_onnx(make_model([node], inputs, [f32("y", 2, 4)]))


def blocked(
    weight: NDArray, scale: NDArray, zero_point: NDArray | None, axis: int, block: int,
    transposed: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """x -> MatMul(x, DequantizeLinear(w, blocks)) of opset 21."""
    names = ["w", "s", *(["z"] if zero_point is not None else [])]
    nodes = [helper.make_node("DequantizeLinear", names, ["v"], axis=axis, block_size=block)]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["v"], ["vt"]))
    nodes.append(helper.make_node("MatMul", ["x", "vt" if transposed else "v"], ["y"]))
    constants = {"w": weight, "s": scale}
    if zero_point is not None:
        constants["z"] = zero_point
    depth, columns = weight.shape[::-1] if transposed else weight.shape
    model = make_model(nodes, [f32("x", 3, depth)], [f32("y", 3, columns)], constants)
    return with_opset(model, 21)


@pytest.mark.sampled
@pytest.mark.parametrize("zero_point", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("depth", "block"), [(64, 16), (70, 16)])
def test_blocked_dequantize_linear(depth: int, block: int, dtype: str, zero_point: bool) -> None:
    blocks = -(-depth // block)
    weight = integers(depth, 10, dtype=dtype)
    scale = np.random.default_rng(1).uniform(0.01, 0.02, (blocks, 10)).astype(np.float32)
    offsets = integers(blocks, 10, dtype=dtype, seed=2) if zero_point else None
    model = blocked(weight, scale, offsets, 0, block)
    feeds = {"x": random(3, depth)}
    # Terms of up to 255 * 0.02 * 3; a sum has depth of them.
    atol = depth * depth * 15 * 2.0**-24
    imported = compare(model, feeds, reference(model, feeds), rtol=0, atol=atol)
    assert ((blocks, block, 10), dtype) in constants_of(imported)
    found = operators(imported)
    assert found["subtract"] == zero_point and found["strided_slice"] == (depth == 70)


def test_a_transposed_blocked_weight() -> None:
    """[N, K] with blocks along K, as torch exporters write it: no transpose remains."""
    scale = np.random.default_rng(1).uniform(0.01, 0.02, (10, 4)).astype(np.float32)
    weight = integers(10, 64, dtype="int8")
    offsets = integers(10, 4, dtype="int8", seed=2)
    model = blocked(weight, scale, offsets, 1, 16, transposed=True)
    feeds = {"x": random(3, 64)}
    atol = 64 * 64 * 15 * 2.0**-24
    imported = compare(model, feeds, reference(model, feeds), rtol=0, atol=atol)
    assert operators(imported)["permute_dims"] == 0
    assert ((4, 16, 10), "int8") in constants_of(imported)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("as_node", [True, False])
def test_weights_of_4_bits(kind: int, as_node: bool) -> None:
    """The weights are initialisers or Constant nodes."""
    low, high = (-8, 8) if kind == TensorProto.INT4 else (0, 16)
    rng = np.random.default_rng(3)
    weight, offsets = rng.integers(low, high, (32, 6)), rng.integers(low, high, (2, 6))
    scale = rng.uniform(0.1, 0.2, (2, 6)).astype(np.float32)
    tensors = [helper.make_tensor("w", kind, (32, 6), weight.ravel()),
               helper.make_tensor("z", kind, (2, 6), offsets.ravel())]  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=0, block_size=16),
             helper.make_node("MatMul", ["x", "v"], ["y"])]  # fmt: skip
    if as_node:
        nodes = [
            *(helper.make_node("Constant", [], [t.name], value=t) for t in tensors), *nodes
        ]  # fmt: skip
    model = make_model(nodes, [f32("x", 3, 32)], [f32("y", 3, 6)], {"s": scale})
    if not as_node:
        model.graph.initializer.extend(tensors)
    x = random(3, 32)
    dequantised = (weight - np.repeat(offsets, 16, 0)) * np.repeat(scale, 16, 0)
    wanted = (x.astype(np.float64) @ dequantised).astype(np.float32)
    imported = compare(with_opset(model, 21), {"x": x}, [wanted], rtol=1e-5, atol=1e-4)
    name = "int8" if kind == TensorProto.INT4 else "uint8"
    assert ((2, 16, 6), name) in constants_of(imported)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_blocks_of_values_of_run_time(axis: int) -> None:
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=axis, block_size=4)
    grid = [4, 6, 10]
    grid[axis] = -(-grid[axis] // 4)
    scale = np.random.default_rng(1).uniform(0.01, 0.02, grid).astype(np.float32)
    model = make_model([node], [("q", TensorProto.INT8, [4, 6, 10])], [f32("y", 4, 6, 10)],
                       {"s": scale})  # fmt: skip
    feeds = {"q": integers(4, 6, 10, dtype="int8")}
    model = with_opset(model, 21)
    compare(model, feeds, reference(model, feeds), rtol=0, atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_block_quantized(bits: int, zero_points: bool) -> None:
    rng = np.random.default_rng(4)
    numbers = rng.integers(0, 1 << bits, (20, 64)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (20, 2)).astype(np.float32)
    offsets = rng.integers(0, 1 << bits, (20, 2)).astype(np.uint8)
    constants: dict[str, NDArray] = {"w": packed(numbers, bits), "s": scales}
    if zero_points:
        constants["z"] = packed(offsets, bits)
    node = helper.make_node("GatherBlockQuantized", ["w", "i", *list(constants)[1:]], ["y"],
                            domain=MICROSOFT, bits=bits, block_size=32, gather_axis=0,
                            quantize_axis=1)  # fmt: skip
    model = make_model([node], [i64("i", 2, 3)], [f32("y", 2, 3, 64)], constants)
    feeds = {"i": np.array([[0, 19, 7], [7, -1, 3]], np.int64)}
    used = offsets if zero_points else np.full_like(offsets, 1 << (bits - 1))
    table = (numbers.astype(np.float32) - np.repeat(used, 32, 1)) * np.repeat(scales, 32, 1)
    compare(model, feeds, [table[feeds["i"]]], rtol=0, atol=0)
    compare(model, feeds, onnxruntime_run(model, feeds), rtol=0, atol=0)
