"""Operators over dynamic sizes: one program for all, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError

Shape = list[int | str]
IMAGE: Shape = ["batch", 6, "height", "width"]
ROWS: Shape = ["batch", "length", 8]
SIZES: list[dict[str, int]] = [
    {"batch": 1, "length": 1, "height": 2, "width": 2},
    {"batch": 3, "length": 5, "height": 4, "width": 8},
]


def model_of(
    op: str, shapes: list[Shape], *constants: np.ndarray, opset: int = 21, **attributes: Any
) -> onnx.ModelProto:
    """One node with inputs a, b, ... and constants, and a result of undeclared shape."""
    build = OnnxBuilder(opset)
    names = [build.input(name, shape) for name, shape in zip("abc", shapes, strict=False)]
    given = [build.constant(value) for value in constants]
    build.output(build.node(op, *names, *given, **attributes), None)
    return build.model()


def feeds_of(shapes: list[Shape], sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        name: rng.uniform(-1, 1, [sizes.get(str(n), n) for n in shape]).astype(np.float32)
        for name, shape in zip("abc", shapes, strict=False)
    }


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SCALE, SHIFT = np.linspace(0.5, 2, 6, dtype=np.float32), np.linspace(-1, 1, 6, dtype=np.float32)
CASES: dict[str, tuple[str, list[Shape], tuple[np.ndarray, ...], dict[str, Any]]] = {
    "cumsum": ("CumSum", [ROWS], (whole(1).reshape(()),), {}),
    "cumsum back": ("CumSum", [ROWS], (whole(0).reshape(()),), {"reverse": 1, "exclusive": 1}),
    "triu": ("Trilu", [["batch", "length", "width"]], (whole(1).reshape(()),), {}),
    "tril": ("Trilu", [["length", "length"]], (), {"upper": 0}),
    "einsum": ("Einsum", [ROWS, ["batch", "width", 8]], (), {"equation": "bld,bwd->blw"}),
    "einsum trace": ("Einsum", [["batch", "length", "length"]], (), {"equation": "bii->b"}),
    "instance norm": ("InstanceNormalization", [IMAGE], (SCALE, SHIFT), {}),
    "group norm": ("GroupNormalization", [IMAGE], (SCALE, SHIFT), {"num_groups": 3}),
    "depth to space": ("DepthToSpace", [["batch", 8, "height", "width"]], (), {"blocksize": 2}),
    "space to depth": ("SpaceToDepth", [IMAGE], (), {"blocksize": 2}),
    "grid sample": ("GridSample", [IMAGE, ["batch", "length", 3, 2]], (), {}),
    "lrn": ("LRN", [IMAGE], (), {"size": 3}),
    "det": ("Det", [["batch", 4, 4]], (), {}),
    "det of any size": ("Det", [["batch", "length", "length"]], (), {}),
    "eye": ("EyeLike", [["length", "width"]], (), {"k": 1}),
    "hardmax": ("Hardmax", [ROWS], (), {}),
    "reversed": (
        "ReverseSequence",
        [[2, "length", 3]],
        (whole(1, 1),),
        {"batch_axis": 0, "time_axis": 1},
    ),
    "scattered": (
        "ScatterND",
        [["batch", 1, 8]],
        (whole(0).reshape(1, 1), np.ones((1, 1, 8), np.float32)),
        {},
    ),
    "transposed": (
        "ConvTranspose",
        [IMAGE],
        (np.linspace(-1, 1, 6 * 5 * 16, dtype=np.float32).reshape(6, 5, 4, 4),),
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "transposed, cut": (
        "ConvTranspose",
        [IMAGE],
        (np.linspace(-1, 1, 6 * 4 * 9, dtype=np.float32).reshape(6, 4, 3, 3),),
        {"strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [1, 2], "group": 2},
    ),
    "tan": ("Tan", [ROWS], (), {}),
    "log sum": ("ReduceLogSum", [["batch", "height", 8]], (whole(2),), {}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_sizes(name: str) -> None:
    op, shapes, constants, attributes = CASES[name]
    model = model_of(op, shapes, *constants, **attributes)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    peer = literal_session(model)
    for sizes in SIZES:
        feeds = feeds_of(shapes, sizes)
        if name == "log sum":
            feeds = {"a": np.abs(feeds["a"])}
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        assert found.shape == wanted.shape
        # Sums of at most 64 numbers up to 1 in any order, and functions that ONNX Runtime rounds,
        # too.
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)
    assert len(session.programs) == 1


SCATTERS: dict[str, tuple[list[int], list[list[int]], list[list[int]]]] = {
    # Shape of the updates, indices of which some lie outside, and the result.
    "ScatterND": ([2], [[-(2**40), 2**40], [1, -3]], [[0, 0, 1], [2, 0, 0]]),
    "ScatterElements": ([3, 1], [[2**40], [-(2**40)], [-1]], [[2, 0, 0], [3, 0, 0]]),
}


@pytest.mark.parametrize("op", SCATTERS)
def test_places_outside_of_dynamic_data_write_no_foreign_memory(op: str) -> None:
    """As with static sizes, the nearest element is written."""
    shape, places, wanted = SCATTERS[op]
    build = OnnxBuilder()
    data = build.input("data", ["rows", "width"])
    where = build.input("places", ["count", len(places[0])], np.int64)
    updates = build.input("updates", ["count", *shape[1:]])
    build.output(build.node(op, data, where, updates), None)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    feeds = {
        "data": np.zeros((2, 3), np.float32),
        "places": np.array(places),
        "updates": np.arange(1, 1 + len(places), dtype=np.float32).reshape(shape),
    }
    np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)
    with pytest.raises(FeedError):
        session.run(None, {**feeds, "data": np.zeros((0, 3), np.float32)})


def test_determinants_of_no_matrix_and_of_no_rows() -> None:
    model = model_of("Det", [["batch", "length", "length"]])
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    for sizes in ((0, 3, 3), (2, 0, 0)):
        (found,) = session.run(None, {"a": np.zeros(sizes, np.float32)})
        np.testing.assert_array_equal(found, np.ones(sizes[0], np.float32))


def test_determinants_of_few_and_of_more_rows() -> None:
    """Row-permuted triangular matrices with powers of two, which need no rounding."""
    model = model_of("Det", [["batch", "length", "length"]])
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    rng = np.random.default_rng(0)
    for size in range(1, 7):
        triangles = np.triu(2.0 ** rng.integers(-2, 3, (9, size, size)))
        orders = [rng.permutation(size) for _ in triangles]
        x = np.stack([each[order] for each, order in zip(triangles, orders, strict=True)])
        signs = [round(np.linalg.det(np.eye(size)[order])) for order in orders]
        (found,) = session.run(None, {"a": x.astype(np.float32)})
        diagonals = np.diagonal(triangles, axis1=1, axis2=2)
        np.testing.assert_array_equal(found, diagonals.prod(1) * signs)


@pytest.mark.sampled
@pytest.mark.parametrize("to", ["another", "numbers", "scales"])
@pytest.mark.parametrize(
    ("mode", "coordinates", "rounding"),
    [
        ("nearest", "half_pixel", "ceil"),
        ("nearest", "asymmetric", "floor"),
        ("linear", "half_pixel", "floor"),
        ("linear", "align_corners", "floor"),
        ("cubic", "pytorch_half_pixel", "floor"),
    ],
)
def test_resize(to: str, mode: str, coordinates: str, rounding: str) -> None:
    """Resizes to another image's extents, to constants, and by factors."""
    build = OnnxBuilder(19)
    x = build.input("a", ["batch", 3, "height", "width"])
    scales, sizes = "", ""
    if to == "scales":
        scales = build.constant(
            np.array([1, 1, 2, 1 if coordinates == "align_corners" else 1.5], np.float32)
        )
    else:
        wanted = build.constant(whole(7, 5))
        if to == "another":
            wanted = build.node("Shape", build.input("b", ["batch", 2, "rows", "columns"]), start=2)
        sizes = build.node("Concat", build.node("Shape", x, end=2), wanted, axis=0)
    build.output(
        build.node(
            "Resize",
            x,
            "",
            scales,
            sizes,
            mode=mode,
            nearest_mode=rounding,
            coordinate_transformation_mode=coordinates,
        ),
        None,
    )
    model = build.model()
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    for batch, extents, others in ((1, (4, 6), (9, 3)), (2, (2, 2), (1, 8)), (1, (7, 5), (7, 5))):
        feeds = {"a": np.random.default_rng(1).random((batch, 3, *extents), np.float32)}
        if to == "another":
            feeds["b"] = np.zeros((batch, 2, *others), np.float32)
        (found,), (wanted_result,) = session.run(None, feeds), peer.run(None, feeds)
        # Weights are rounded once; absolute values of cubic weights sum to at most 1.3.
        np.testing.assert_allclose(found, wanted_result, rtol=2e-6, atol=2e-6)
    if to == "numbers":
        with pytest.raises(FeedError):
            session.run(None, {"a": np.zeros((1, 3, 0, 4), np.float32)})


def resized_by(dtype: type, antialias: int) -> onnx.ModelProto:
    """Factors whose results are no integer multiples."""
    build = OnnxBuilder(19)
    x = build.input("a", ["batch", 3, "height", "width"], dtype)
    scales = build.constant(np.array([1, 1, 0.5, 1.5], np.float32))
    build.output(
        build.node("Resize", x, "", scales, mode="linear", antialias=antialias), None, dtype
    )
    return build.model()


def test_floats_are_resized_along_all_axes_in_one_kernel() -> None:
    model = resized_by(np.float32, 0)
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    names = [each.function for each in session.explain()]
    assert names.count("resize") == 1 and not any("take" in name for name in names)
    for extents in ((4, 6), (9, 3)):
        feeds = {"a": np.random.default_rng(1).random((2, 3, *extents), np.float32)}
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("dtype", "antialias"), [(np.uint8, 0), (np.float32, 1)])
def test_integers_and_filters_are_resized_axis_by_axis(dtype: type, antialias: int) -> None:
    model = resized_by(dtype, antialias)
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    assert "resize" not in [each.function for each in session.explain()]
    x = np.random.default_rng(1).integers(0, 256, (2, 3, 10, 6)).astype(dtype)
    (found,), (wanted,) = session.run(None, {"a": x}), peer.run(None, {"a": x})
    # ONNX Runtime rounds integers differently; floats up to 256 have 24 bits.
    bound = 1 if dtype is np.uint8 else 2**-12
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_of_an_image_of_any_size(mode: str) -> None:
    build = OnnxBuilder(16)
    x = build.input("x", ["batch", 3, "height", "width"])
    regions = build.input("regions", ["count", 4])
    places = build.input("places", ["count"], np.int64)
    build.output(
        build.node(
            "RoiAlign",
            x,
            regions,
            places,
            mode=mode,
            output_height=2,
            output_width=3,
            sampling_ratio=2,
            spatial_scale=0.5,
        ),
        None,
    )
    model = build.model()
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    rng = np.random.default_rng(2)
    for batch, height, width, count in ((1, 9, 7, 1), (3, 5, 16, 4)):
        corners = np.sort(rng.uniform(0, 2 * min(height, width), (count, 2, 2)), axis=1)
        feeds = {
            "x": rng.random((batch, 3, height, width), np.float32),
            "regions": corners.reshape(count, 4).astype(np.float32),
            "places": rng.integers(0, batch, count),
        }
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("einsum trace", {"a": (2, 3, 4)}),
        ("det of any size", {"a": (2, 3, 4)}),
        ("space to depth", {"a": (1, 6, 3, 2)}),
        ("grid sample", {"a": (2, 6, 3, 3), "b": (1, 2, 3, 2)}),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, sizes: dict[str, tuple[int, ...]]) -> None:
    """All sizes have different names."""
    op, shapes, constants, attributes = CASES[name]
    apart: list[Shape] = [
        [f"{size}_{i}_{n}" if isinstance(size, str) else size for n, size in enumerate(shape)]
        for i, shape in enumerate(shapes)
    ]
    model = model_of(op, apart, *constants, **attributes)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    with pytest.raises(FeedError):
        session.run(None, {key: np.zeros(shape, np.float32) for key, shape in sizes.items()})


def test_updates_with_names_of_their_own() -> None:
    """Their sizes equal those of the indices and the data, which is checked at the call."""
    build = OnnxBuilder()
    data = build.input("data", ["rows", "width"])
    places = build.input("places", ["count", 1], np.int64)
    updates = build.input("updates", ["more", "wide"])
    build.output(build.node("ScatterND", data, places, updates), None)
    program = tvm_hybrid.compile(build.model(), num_threads=1, keep_dynamic=True, records=[])
    before, where = np.zeros((4, 3), np.float32), np.array([[1], [3]])
    (found,) = program.run(before, where, np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(found.numpy()[:, 0], [0, 1, 0, 1])
    with pytest.raises(FeedError, match="'count' is 2 in input 'places'"):
        program.run(before, where, np.ones((3, 3), np.float32))


def test_a_dynamic_number_of_coordinates_is_refused() -> None:
    build = OnnxBuilder()
    data = build.input("data", ["rows", "width"])
    places = build.input("places", ["count", "depth"], np.int64)
    updates = build.input("updates", ["count", "width"])
    build.output(build.node("ScatterND", data, places, updates), None)
    with pytest.raises(UnsupportedOperatorError, match="how many coordinates"):
        tvm_hybrid.compile(build.model(), num_threads=1, keep_dynamic=True)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("shape", [["batch", 6, "length"], ["batch", 6, "height", 2, "width"]])
def test_lrn_of_other_ranks_and_even_sizes(shape: Shape, size: int) -> None:
    """ONNX Runtime supports only images and odd sizes; ONNX's reference sums too few channels."""
    model = model_of("LRN", [shape], size=size, alpha=0.3)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for sizes in SIZES:
        x = feeds_of([shape], sizes)["a"]
        around = [slice(max(0, c - (size - 1) // 2), c + size // 2 + 1) for c in range(6)]
        sums = np.stack([(x[:, each] ** 2).sum(1) for each in around], 1)
        (found,) = session.run(None, {"a": x})
        # A sum of at most 4 squares up to 1, a root and a quotient.
        np.testing.assert_allclose(found, x / (1 + 0.3 / size * sums) ** 0.75, rtol=2e-6)
