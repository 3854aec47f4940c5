"""Dynamic dimensions are variables of the Relax module, and shapes are expressions of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.models import folded
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError, ShapeError, UnsupportedOperatorError
from tvm_hybrid.frontend import ImportedModel, import_onnx


def imported(build: OnnxBuilder, **options: Any) -> ImportedModel:
    return import_onnx(build.model(), keep_dynamic=True, **options)


def shapes(found: ImportedModel) -> list[tuple[int | str, ...]]:
    return [info.shape for info in found.inputs]


def calls(found: ImportedModel) -> list[str]:
    """Operators of the main function in order, without operators that compute shapes."""
    function = relax.transform.DeadCodeElimination()(found.mod)["main"]
    values = [b.value for block in function.body.blocks for b in block.bindings]
    named = [value.op.name for value in values if isinstance(value, relax.Call)]
    return [name for name in named if name != "relax.shape_to_tensor"]


def test_equal_names_are_one_variable_and_unknown_dimensions_get_names() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["batch", "seq len", None])  # type: ignore[list-item]
    y = build.input("y", ["batch", "seq len", "?"])
    build.output(build.node("Mul", x, build.node("ReduceSum", y, keepdims=1)), ["batch", "s", "t"])
    found = imported(build)
    assert shapes(found) == [("batch", "seq_len", "x_2"), ("batch", "seq_len", "y_2")]
    first, second = (param.ty.shape.values for param in found.mod["main"].params)
    assert first[0].same_as(second[0]) and first[1].same_as(second[1])
    assert not first[2].same_as(second[2])
    assert found.outputs[0].shape == ("batch", "seq_len", "x_2")


def test_names_that_become_equal_stay_apart() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["a.b", "a b", "1st"])
    build.output(build.node("Relu", x), ["p", "q", "r"])
    assert shapes(imported(build)) == [("a_b", "a_b_1", "n_1st")]


def test_a_sum_of_names_is_the_sum_of_their_variables() -> None:
    build = OnnxBuilder()
    past = build.input("cache", ["batch", "past", 4])
    new = build.input("new", ["batch", "n", 4])
    mask = build.input("mask", ["batch", "past + n", 1])
    joined = build.node("Concat", past, new, axis=1)
    build.output(build.node("Mul", joined, mask), ["batch", "total", 4])
    found = imported(build)
    assert shapes(found)[2] == ("batch", "past + n", 1)
    assert calls(found) == ["relax.concat", "relax.multiply"]
    assert found.outputs[0].shape == ("batch", "past + n", 4)
    some = imported(build, shapes={"cache": (2, 3, 4)})
    assert shapes(some) == [(2, 3, 4), (2, "n", 4), (2, "3 + n", 1)]
    assert shapes(imported(build, shapes={"batch": 1, "past": 3, "n": 2}))[2] == (1, 5, 1)


def test_a_sum_of_other_names_is_a_name_of_its_own() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["p + q", 4])
    build.output(build.node("Relu", x), ["r", 4])
    assert shapes(imported(build)) == [("p___q", 4)]


def test_a_mask_of_another_name_is_found_to_be_the_sum() -> None:
    build = OnnxBuilder()
    past = build.input("cache", ["batch", "past", 4])
    new = build.input("new", ["batch", "n", 4])
    mask = build.input("mask", ["batch", "total", 1])
    joined = build.node("Concat", past, new, axis=1)
    build.output(build.node("Mul", joined, mask), ["batch", "total", 4])
    assert shapes(imported(build))[2] == ("batch", "past + n", 1)


def test_sizes_that_have_to_be_equal_become_one() -> None:
    build = OnnxBuilder()
    x, y = build.input("x", ["n", "k"]), build.input("y", ["j", 3])
    build.output(build.node("MatMul", x, y), ["n", 3])
    assert shapes(imported(build)) in ([("n", "k"), ("k", 3)], [("n", "j"), ("j", 3)])


def test_operands_that_may_be_broadcast_stay_apart() -> None:
    build = OnnxBuilder()
    x, y = build.input("x", ["n"]), build.input("y", ["m"])
    build.output(build.node("Add", x, y), ["r"])
    assert shapes(imported(build)) == [("n",), ("m",)]


def shape_of(build: OnnxBuilder, value: str, axis: int) -> str:
    size = build.node("Gather", build.node("Shape", value), build.constant(axis, np.int64))
    return build.node("Unsqueeze", size, build.constant([0], np.int64))


def vector(build: OnnxBuilder, *parts: Any) -> str:
    values = [p if isinstance(p, str) else build.constant([p], np.int64) for p in parts]
    return build.node("Concat", *values, axis=0)


def test_computed_shapes_become_expressions() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["b", "s", 12])
    batch, length = (shape_of(build, x, axis) for axis in (0, 1))
    heads = build.node("Reshape", x, vector(build, batch, length, 3, -1))
    turned = build.node("Transpose", heads, perm=[0, 2, 1, 3])
    rows = build.node("Mul", batch, build.constant([3], np.int64))
    merged = build.node("Reshape", turned, vector(build, rows, -1, 4))
    pair = build.node("Div", build.node("Shape", x, start=2, end=3), build.constant([6], np.int64))
    back = build.node("Reshape", merged, vector(build, 0, -1, pair))
    build.output(back, ["r", "q", 2])
    found = imported(build)
    assert calls(found) == ["relax.reshape", "relax.permute_dims", *["relax.reshape"] * 2]
    assert found.outputs[0].shape[2] == 2
    assert "match_cast" not in found.mod.script()


def test_a_choice_by_sizes_is_made() -> None:
    """Exporters write for Expand: a size, or -1 for the operand's size."""
    build = OnnxBuilder()
    x = build.input("x", [1, "s"])
    asked = vector(build, 4, shape_of(build, x, 1))
    ones = build.node("ConstantOfShape", build.constant([2], np.int64))
    ones = build.node("Cast", ones, to=7)
    minus = build.node("Sub", ones, build.constant([1, 1], np.int64))
    is_default = build.node("Equal", asked, minus)
    chosen = build.node("Where", is_default, ones, asked)
    build.output(build.node("Expand", x, chosen), [4, "s"])
    found = imported(build)
    assert found.outputs[0].shape == (4, "s")
    assert calls(found) == ["relax.broadcast_to"]


def test_a_table_of_positions_is_sliced_and_limits_the_size() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["b", "s", 2])
    zero = build.constant([0], np.int64)
    table = build.constant(np.arange(20).reshape(1, 10, 2), np.float32)
    part = build.node("Slice", table, zero, shape_of(build, x, 1), build.constant([1], np.int64))
    build.output(build.node("Add", x, part), ["b", "s", 2])
    found = imported(build)
    assert found.limits == {"s": 10}
    assert found.outputs[0].shape == ("b", "s", 2)
    assert calls(found) == ["relax.strided_slice", "relax.add"]


def test_ranges_and_constants_of_dynamic_sizes() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 3])
    size = build.node("Gather", build.node("Shape", x), build.constant(0, np.int64))
    places = build.node("Range", build.constant(0, np.int64), size, build.constant(1, np.int64))
    filled = build.node("ConstantOfShape", build.node("Shape", x))
    build.output(places, ["n"], np.int64)
    build.output(build.node("Add", x, filled), ["n", 3])
    found = imported(build)
    assert [info.shape for info in found.outputs] == [("n",), ("n", 3)]
    assert sorted(calls(found)) == ["relax.add", "relax.arange", "relax.broadcast_to"]


def test_bounds_of_a_range_may_be_vectors_of_one_element() -> None:
    build = OnnxBuilder()
    size = build.node("Shape", build.input("x", ["n"]))
    one = build.constant(1, np.int64)
    build.output(build.node("Range", build.constant([0]), size, one), ["n"], np.int64)
    known = build.node("Range", build.constant([2]), build.constant([8]), one)
    build.output(known, [6], np.int64)
    found = imported(build)
    assert [info.shape for info in found.outputs] == [("n",), (6,)]
    assert calls(found) == ["relax.arange"]


@pytest.mark.parametrize("place", [0, -1])
def test_a_slice_of_a_dynamic_axis(place: int) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["b", "s", 4])
    build.output(build.node("Gather", x, build.constant(place, np.int64), axis=1), ["b", 4])
    found = imported(build)
    assert found.outputs[0].shape == ("b", 4)
    assert calls(found)[-2:] == ["relax.strided_slice", "relax.reshape"]


def test_an_image_of_dynamic_batch_and_width() -> None:
    """Normalisation is folded, pads are static, and a height that can only be 1 becomes 1."""
    build = OnnxBuilder(opset=12)
    x = build.input("x", ["n", 3, "h", "w"])
    weight = build.constant(np.ones((4, 3, 3, 3)), np.float32)
    y = build.node("Conv", x, weight, auto_pad="SAME_UPPER")
    statistics = [build.constant(np.full(4, value), np.float32) for value in (1, 0, 2, 3)]
    y = build.node("BatchNormalization", y, *statistics)
    pooled = build.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    line = build.node("ReduceMean", pooled, axes=[2], keepdims=1)
    joined = build.node("Concat", pooled, line, axis=1)
    flat = build.node("Reshape", joined, vector(build, shape_of_batch(build, x), 8, -1))
    build.output(build.node("Softmax", flat, axis=2), ["n", 8, "v"])
    found = imported(build)
    assert found.outputs[0].shape == ("n", 8, "w // 2")
    named = calls(found)
    assert "relax.nn.batch_norm" not in named and "relax.call_tir" not in named
    assert named.count("relax.nn.conv2d") == 1


def test_windows_of_two_lack_an_element_at_the_end_of_a_dynamic_extent_at_most() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 3, "h", 6])
    window = {"auto_pad": "SAME_UPPER", "kernel_shape": [2, 2], "strides": [2, 2]}
    build.output(build.node("MaxPool", x, **window), ["n", 3, "v", 3])
    assert imported(build).outputs[0].shape == ("n", 3, "((h - 1) // 2) + 1", 3)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    for height in (1, 4, 7):
        image = np.random.default_rng(height).standard_normal((2, 3, height, 6)).astype(np.float32)
        (expected,) = literal_session(build.model()).run(None, {"x": image})
        np.testing.assert_array_equal(session.run(None, {"x": image})[0], expected)


def shape_of_batch(build: OnnxBuilder, value: str) -> str:
    """The computed shape that opset-12 exporters write."""
    bounds = [build.constant([place], np.int64) for place in (0, 1, 0)]
    return build.node("Slice", build.node("Shape", value), *bounds)


@pytest.mark.parametrize("far", [10**9, 2**31 - 1, 2**62])
def test_a_slice_to_a_far_end_is_whole(far: int) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 8])
    bounds = [build.constant(each, np.int64) for each in ([0, 2], [far, far], [0, 1])]
    build.output(build.node("Slice", x, *bounds), ["n", 6])
    found = imported(build)
    assert found.outputs[0].shape == ("n", 6)
    assert "relax.call_tir" not in calls(found)


def test_what_cannot_stay_dynamic_is_named() -> None:
    build = OnnxBuilder(18)
    x = build.input("x", [2, 5, "parts"])
    build.output(build.node("DFT", x, axis=1), [2, 5, 2])
    with pytest.raises(UnsupportedOperatorError, match=r"DFT0.*whether its signal is complex"):
        imported(build)


def test_a_rank_cannot_stay_dynamic() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n"])
    build.output(build.node("Relu", x), ["n"])
    model = build.model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ShapeError, match="no shape in the model"):
        import_onnx(model, keep_dynamic=True)


def test_stock_tvm_compiles_what_is_imported() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["b", "s", 12])
    heads = build.node("Reshape", x, vector(build, 0, shape_of(build, x, 1), 3, -1))
    build.output(build.node("ReduceMax", heads, axes=[2], keepdims=0), ["b", "s", 4])
    mod = imported(build).mod
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    built = tvm.compile(mod, target=target, relax_pipeline="default")
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    for sizes in [(1, 2), (3, 5), (2, 0)]:
        value = np.random.default_rng(0).standard_normal((*sizes, 12)).astype(np.float32)
        result = main(tvm.runtime.tensor(value)).numpy()
        np.testing.assert_array_equal(result, value.reshape(*sizes, 3, 4).max(2))


def same_as_onnx_runtime(build: OnnxBuilder, name: str, *values: np.ndarray) -> None:
    """Checks that one program gives ONNX Runtime's bits."""
    executable = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    peer = literal_session(build.model())
    for value in values:
        for found, wanted in zip(
            executable.run({name: value}), peer.run(None, {name: value}), strict=True
        ):
            np.testing.assert_array_equal(found.numpy(), wanted)


def images(*sizes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-99, 99, each).astype(np.float32) for each in sizes]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("coordinates", "rounding"),
    [
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
    ],
)
@pytest.mark.parametrize("factors", [(2, 2), (3, 1), (1, 5)])
def test_images_of_dynamic_sizes_are_resized_by_whole_factors(
    coordinates: str, rounding: str, factors: tuple[int, int]
) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, "h", "w"])
    scales = build.constant([1, 1, *factors], np.float32)
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    y = build.node("Resize", x, "", scales, mode="nearest", **attributes)
    build.output(y, ["n", 2, "p", "q"])
    same_as_onnx_runtime(build, "x", *images((1, 2, 3, 4), (2, 2, 1, 7), (1, 2, 401, 2)))


@pytest.mark.parametrize("scales", [(1, 1, 1.5, 2), (1, 2, 1, 1), (1, 1, 0.5, 0.5)])
def test_images_by_other_factors(scales: tuple[float, ...]) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, "h", "w"])
    y = build.node("Resize", x, "", build.constant(scales, np.float32), mode="nearest")
    build.output(y, ["n", "c", "p", "q"])
    same_as_onnx_runtime(build, "x", *images((1, 2, 3, 4), (2, 2, 2, 7)))


def test_parts_that_fit_only_for_some_sizes_are_checked_when_they_are_joined() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 1, "h", 4])
    halved = build.node("MaxPool", x, kernel_shape=[2, 1], strides=[2, 1])
    scales = build.constant([1, 1, 2, 1], np.float32)
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    again = build.node("Resize", halved, "", scales, mode="nearest", **attributes)
    build.output(build.node("Concat", again, x, axis=1), ["n", 2, "h", 4])
    same_as_onnx_runtime(build, "x", *images((1, 1, 4, 4), (2, 1, 10, 4)))
    executable = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    with pytest.raises(FeedError, match="sizes that do not fit"):
        executable.run({"x": images((1, 1, 5, 4))[0]})


@pytest.mark.parametrize("before", [(0, 0), (2, 1)])
def test_images_of_dynamic_sizes_are_padded(before: tuple[int, int]) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, "h", "w"])
    pads = build.constant([0, 0, *before, 0, 1, 3, 1], np.int64)
    y = build.node("Pad", x, pads, build.constant(np.float32(7)))
    build.output(y, ["n", 3, "p", "q"])
    same_as_onnx_runtime(build, "x", *images((1, 2, 3, 4), (3, 2, 1, 7)))


def test_static_axes_are_cropped_and_mirrored_beside_dynamic_ones() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 5, 4])
    pads = build.constant([0, -1, 2, 0, 1, 1], np.int64)
    build.output(build.node("Pad", x, pads), ["n", 5, 7])
    build.output(build.node("Pad", x, build.constant([0, 2, 0] * 2), mode="reflect"), ["n", 9, 4])
    same_as_onnx_runtime(build, "x", *images((1, 5, 4), (3, 5, 4)))


def test_padding_becomes_that_of_a_convolution_of_any_number_of_images() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 3, 6, 6])
    padded = build.node("Pad", x, build.constant([0, 0, 0, 0, 0, 0, 1, 1], np.int64))
    weight = build.constant(np.ones((4, 3, 3, 3)), np.float32)
    build.output(build.node("Conv", padded, weight, strides=[2, 2]), ["n", 4, 3, 3])
    assert calls(folded(imported(build))) == ["relax.nn.conv2d"]
    same_as_onnx_runtime(build, "x", *images((1, 3, 6, 6), (4, 3, 6, 6)))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_softmax_over_all_axes_from_one_on_takes_any_number_of_rows(axis: int) -> None:
    build = OnnxBuilder(opset=9)
    x = build.input("x", ["n", 5, 1, 3])
    build.output(build.node("Softmax", x, axis=axis), ["n", 5, 1, 3])
    executable = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    peer = literal_session(build.model())
    for value in images((1, 5, 1, 3), (4, 5, 1, 3)):
        (found,) = executable.run({"x": value / 50})
        (wanted,) = peer.run(None, {"x": value / 50})
        # 15 exponentials, each with an error of a few units in the last place.
        np.testing.assert_allclose(found.numpy(), wanted, rtol=32 * 2.0**-23, atol=0)


def test_a_skip_has_the_size_of_what_it_is_joined_with() -> None:
    """U-Nets join n and n // 4 * 4 samples: the program checks that they are equal."""
    build = OnnxBuilder()
    x = build.input("x", ["batch", 2, "n"])
    pooled = build.node("MaxPool", x, kernel_shape=[4], strides=[4])
    scales = build.constant(np.array([1, 1, 4], np.float32))
    large = build.node("Resize", pooled, "", scales)
    build.output(build.node("Concat", x, large, axis=1), ["batch", 4, "n"])
    model = build.model()
    executable = tvm_hybrid.compile(model, keep_dynamic=True, num_threads=1)
    peer = literal_session(model)
    for n in (4, 32):
        feed = np.random.default_rng(n).standard_normal((3, 2, n)).astype(np.float32)
        (found,) = executable.run({"x": feed})
        np.testing.assert_array_equal(found.numpy(), peer.run(None, {"x": feed})[0])
    with pytest.raises(FeedError):
        executable.run({"x": np.zeros((3, 2, 33), np.float32)})


@pytest.mark.parametrize(("rows", "others"), [(5, 5), (1, 5), (5, 1)])
def test_the_same_two_sizes_have_one_common_size(rows: int, others: int) -> None:
    """The sum x + y and the difference y - x can be joined."""
    build = OnnxBuilder()
    x, y = build.input("x", ["n", 3]), build.input("y", ["m", 3])
    parts = build.node("Add", x, y), build.node("Sub", y, x)
    build.output(build.node("Concat", *parts, axis=1), ["k", 6])
    executable = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, 3)).astype(np.float32) for size in (rows, others))
    (found,) = executable.run({"x": a, "y": b})
    np.testing.assert_array_equal(found.numpy(), np.concatenate([a + b, b - a], axis=1))
