"""Resizing by constant taps equals TVM's own legalisation in every mode."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.resize import MANY_CHANNELS
from relay_passes.legalize.schedule_generic import legalize_operators, schedule_leftovers
from tir_schedules.generic.schedule import schedule_generic

COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
EPSILON = float(np.finfo(np.float32).eps)
SIZES = ((10, 18), (5, 4), (13, 9))
"""Sizes for an image 5 x 9: whole factors, a narrower image, a higher one."""


def module(layout: str, dtype: str, batch: int | tirx.Var = 1, **attrs: str) -> IRModule:
    """A module with all SIZES of an image 5 x 9 with 3 channels."""
    shape = (batch, 3, 5, 9) if layout == "NCHW" else (batch, 5, 9, 3)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [
                builder.emit(relax.op.image.resize2d(x, size, layout=layout, **attrs))
                for size in SIZES
            ]
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    return builder.get()


def run(mod: IRModule, x: np.ndarray) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return [each.numpy() for each in machine["main"](tvm.runtime.tensor(x))]


def both(mod: IRModule, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Our results and TVM's."""
    stock = relax.transform.LegalizeOps()(mod)
    return list(zip(run(legalize_operators()(mod), x), run(stock, x), strict=True))


def image(layout: str) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((1, 3, 5, 9)).astype(np.float32)
    return x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "method, layout", [("linear", "NHWC"), ("linear", "NCHW"), ("cubic", "NHWC")]
)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_interpolates_as_tvm_does(method: str, layout: str, coordinates: str) -> None:
    attrs = {"method": method, "coordinate_transformation_mode": coordinates}
    for ours, stock in both(module(layout, "float32", **attrs), image(layout)):
        # Places up to 13 are rounded to 13 epsilons, which moves weights that sum up to 2 in
        # magnitude by some epsilons each; the elements are below 4.
        np.testing.assert_allclose(ours, stock, rtol=0, atol=16 * 13 * EPSILON)


@pytest.mark.sampled
@pytest.mark.parametrize("coordinates, rounding", [*itertools.product(COORDINATES, ROUNDINGS)])
def test_takes_the_element_that_tvm_takes(coordinates: str, rounding: str) -> None:
    layout, dtype = ("NCHW", "uint8") if rounding == "ceil" else ("NHWC", "float32")
    mod = module(
        layout,
        dtype,
        method="nearest_neighbor",
        coordinate_transformation_mode=coordinates,
        rounding_method=rounding,
    )
    for ours, stock in both(mod, (image(layout) * 40 + 128).astype(dtype)):
        np.testing.assert_array_equal(ours, stock)


WHOLE = [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")]


@pytest.mark.parametrize("coordinates, rounding", WHOLE)
def test_whole_factors_need_no_table(coordinates: str, rounding: str) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 5, 9, 3), "uint8"))
    with builder.function("main", [x]):
        result = builder.emit(
            relax.op.image.resize2d(
                x,
                (10, 36),
                layout="NHWC",
                method="nearest_neighbor",
                coordinate_transformation_mode=coordinates,
                rounding_method=rounding,
            )
        )
        builder.emit_func_output(result)
    mod = legalize_operators()(builder.get())
    (function,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(function.params) == 2 and "Cast" not in str(function.script())
    data = np.arange(135, dtype=np.uint8).reshape(1, 5, 9, 3)
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    resized = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_array_equal(resized, data.repeat(2, 1).repeat(4, 2))


N, H, W = (tirx.Var(name, "int64") for name in "nhw")


def dynamic(
    layout: str, dtype: str = "float32", channels: int | tirx.Var = 16, **attrs: Any
) -> IRModule:
    """Resizes an image of dynamic size to 3/2 of its height and half of its width."""
    shape = (N, channels, H, W) if layout == "NCHW" else (N, H, W, channels)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            size = relax.ShapeExpr([H * 3 // 2, W // 2])
            resized = relax.op.image.resize2d(x, size, layout=layout, **attrs)
            result = builder.emit_output(resized)
        builder.emit_func_output(result)
    return builder.get()


def kernels(mod: IRModule) -> list[str]:
    """Names of the module's kernels after scheduling."""
    noted: list = []
    machine = Machine("znver3", isa_named("avx2"), 1)
    schedule_leftovers(machine, noted)(legalize_operators()(mod))
    return [each.kernel for each in noted]


DYNAMIC = [
    ("NCHW", 16, "linear", 2),
    ("NCHW", MANY_CHANNELS, "linear", 2),
    ("NHWC", 16, "linear", 2),
    ("NHWC", tirx.Var("c", "int64"), "linear", 2),
    ("NHWC", MANY_CHANNELS, "linear", 1),
    ("NCHW", 16, "cubic", 2),
    ("NHWC", MANY_CHANNELS, "cubic", 2),
]
"""Layout, channels, method, and number of kernels: tables add one if channels are few or the
kernel buffers rows."""


@pytest.mark.parametrize(("layout", "channels", "method", "number"), DYNAMIC)
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_dynamic_extents(
    coordinates: str, layout: str, channels: int | tirx.Var, method: str, number: int
) -> None:
    mod = dynamic(
        layout, channels=channels, method=method, coordinate_transformation_mode=coordinates
    )
    ours, stock = (
        relax.VirtualMachine(tvm.compile(each, target="llvm"), tvm.cpu())
        for each in (legalize_operators()(mod), relax.transform.LegalizeOps()(mod))
    )
    assert kernels(mod) == ["generic_injective"] * number
    of_sample = channels if isinstance(channels, int) else 3
    for extents in ((4, 9), (7, 2)):
        shape = (2, of_sample, *extents) if layout == "NCHW" else (2, *extents, of_sample)
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        made = [each["main"](tvm.runtime.tensor(x)).numpy() for each in (ours, stock)]
        # The tolerance of constant taps.
        np.testing.assert_allclose(*made, rtol=0, atol=16 * 13 * EPSILON)


@pytest.mark.parametrize("method", ["linear", "cubic", "nearest_neighbor"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_dynamic_batch_has_the_constants_of_a_static_one(layout: str, method: str) -> None:
    attrs = {"method": method, "coordinate_transformation_mode": "half_pixel"}
    static, whole = (module(layout, "float32", batch, **attrs) for batch in (2, N))
    assert kernels(whole) == ["generic_injective"] * len(SIZES)
    x = np.concatenate([image(layout), -image(layout)])
    legalized = legalize_operators()
    for one, other in zip(run(legalized(whole), x), run(legalized(static), x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "mod",
    [
        dynamic("NCHW", "float16", method="linear"),
        dynamic("NCHW", method="cubic", cubic_exclude=1),
        dynamic("NCHW", method="linear", coordinate_transformation_mode="align_corners"),
    ],
)
def test_other_dynamic_forms_are_left_to_tvm(mod: IRModule) -> None:
    assert len(kernels(mod)) == 1


def test_rows_are_kept_where_columns_are_read_by_a_table() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 16, 64), "float32"))
    with builder.function("main", [x]):
        result = builder.emit(relax.op.image.resize2d(x, (8, 32), layout="NCHW", method="linear"))
        builder.emit_func_output(result)
    mod = legalize_operators()(builder.get())
    (function,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    scheduled, _ = schedule_generic(function, Machine("znver3", isa_named("avx2"), 1))
    assert "rows_flat = T.alloc_buffer((T.int64(64),))" in str(scheduled.script())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_crops_and_other_types_are_left_to_tvm(layout: str) -> None:
    crop = {"method": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    for mod in (module(layout, "float32", **crop), module(layout, "float16", method="linear")):
        for function in legalize_operators()(mod).functions.values():
            if isinstance(function, tirx.PrimFunc):
                assert len(function.params) == 2


@pytest.mark.parametrize("method, rows_kept", [("linear", False), ("cubic", True)])
def test_channels_are_vectors_and_rows_stay_in_cache(method: str, rows_kept: bool) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 8, 32), "float32"))
    with builder.function("main", [x]):
        result = builder.emit(relax.op.image.resize2d(x, (16, 16), layout="NHWC", method=method))
        builder.emit_func_output(result)
    mod = legalize_operators()(builder.get())
    (function,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    scheduled, name = schedule_generic(function, Machine.from_target(target, 1))
    text = str(scheduled.script())
    assert name == "generic_injective" and "T.vectorized" in text
    # The buffer has one row of 8 x 32, not all 16.
    assert ("rows_flat = T.alloc_buffer((T.int64(256),))" in text) == rows_kept
