"""DeformConv: groups, strides, dilations, masks, one to three axes, offsets far outside."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from onnx import helper

import tvm_hybrid
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import legalize_operators
from tir_schedules.generic.schedule import schedule_generic
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import make_model, random

OPSET = 22


@dataclass(frozen=True)
class Form:
    """A node: shapes of x and of the kernel, output channels, and attributes."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    weights: int
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1
    offset_group: int = 1
    extras: bool = True  # bias and mask
    dtype: str = "float32"

    @property
    def outputs(self) -> list[int]:
        """Spatial shape of the output."""
        rank = len(self.kernel)
        return [
            (self.x[2 + i] + self.pads[i] + self.pads[rank + i]
             - (self.kernel[i] - 1) * self.dilations[i] - 1) // self.strides[i] + 1
            for i in range(rank)
        ]  # fmt: skip


FORMS = {
    "plain": Form((2, 3, 5, 6), (2, 3), 4, (1, 1), (0, 0, 0, 0), (1, 1), extras=False),
    "all": Form((2, 4, 7, 6), (3, 2), 6, (2, 1), (1, 2, 0, 1), (1, 2), 2, 2),
    "offset groups": Form((1, 6, 5, 5), (2, 2), 3, (1, 2), (1, 0, 1, 0), (2, 1), 3, 2),
    "line": Form((2, 2, 9), (3,), 2, (2,), (1, 1), (2,)),
    "volume": Form((1, 2, 3, 4, 3), (2, 2, 2), 2, (1, 1, 1), (0, 1, 0, 0, 0, 1), (1, 1, 1)),
    "half": Form((1, 2, 4, 4), (2, 2), 2, (1, 1), (0, 0, 0, 0), (1, 1), dtype="float16"),
    "double": Form((1, 2, 4, 4), (2, 2), 2, (1, 1), (0, 0, 0, 0), (1, 1), dtype="float64"),
}


def arrays_of(form: Form) -> dict[str, NDArray]:
    """Inputs; offsets up to the image's size, integers among them, far offsets, and a NaN."""
    rank, taps = len(form.kernel), int(np.prod(form.kernel))
    batch, channels = form.x[:2]
    offset = random(batch, form.offset_group * taps * rank, *form.outputs, seed=2) * 2
    offset.flat[::5] = np.round(offset.flat[::5])
    offset.flat[3:6] = [1e9, -1e9, np.nan]
    shapes = {"x": form.x, "w": (form.weights, channels // form.group, *form.kernel)}
    arrays = {name: random(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    arrays["o"] = offset
    if form.extras:
        arrays["b"] = random(form.weights, seed=3)
        arrays["m"] = random(batch, form.offset_group * taps, *form.outputs, seed=4)
    with np.errstate(over="ignore"):
        return {name: array.astype(form.dtype) for name, array in arrays.items()}


def expected(form: Form, arrays: dict[str, NDArray]) -> NDArray[np.float64]:
    """The result, element by element in float64."""
    x, w, o = (arrays[name].astype(np.float64) for name in "xwo")
    rank, taps = len(form.kernel), int(np.prod(form.kernel))
    batch, channels = form.x[:2]
    result = np.zeros((batch, form.weights, *form.outputs))
    if form.extras:
        result += arrays["b"].astype(np.float64).reshape(-1, *(1,) * rank)
    depth, width = channels // form.group, form.weights // form.group
    for n, c in itertools.product(range(batch), range(channels)):
        for tap, at in enumerate(np.ndindex(*form.kernel)):
            first = c // (channels // form.offset_group) * taps + tap
            for place in np.ndindex(*form.outputs):
                point = [
                    place[i] * form.strides[i] - form.pads[i] + at[i] * form.dilations[i]
                    + o[(n, first * rank + i, *place)]
                    for i in range(rank)
                ]  # fmt: skip
                sample = sampled(x[n, c], point)
                if form.extras:
                    sample *= float(arrays["m"][(n, first, *place)])
                group = c // depth
                kernels = slice(group * width, (group + 1) * width)
                result[(n, kernels, *place)] += sample * w[(kernels, c % depth, *at)]
    return result


def sampled(image: NDArray[np.float64], point: list[float]) -> float:
    """Bilinear sample; 0 outside of the image."""
    if not all(-1 < p < size for p, size in zip(point, image.shape, strict=True)):
        return 0.0
    total = 0.0
    low = [int(np.floor(p)) for p in point]
    for corner in itertools.product((0, 1), repeat=len(point)):
        index = tuple(start + step for start, step in zip(low, corner, strict=True))
        if all(0 <= i < size for i, size in zip(index, image.shape, strict=True)):
            shares = [abs(p - i) for p, i in zip(point, index, strict=True)]
            total += float(np.prod([1 - share for share in shares])) * image[index]
    return total


@pytest.mark.sampled
@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    form = FORMS[name]
    arrays = arrays_of(form)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(form.dtype))
    wanted = expected(form, arrays)
    names = ["x", "w", "o", *(["b", "m"] if form.extras else [])]
    node = helper.make_node(
        "DeformConv", names, ["y"], strides=form.strides, pads=form.pads,
        dilations=form.dilations, group=form.group, offset_group=form.offset_group,
    )  # fmt: skip
    feeds = {name: array for name, array in arrays.items() if name != "w"}
    inputs = [(name, code, array.shape) for name, array in feeds.items()]
    model = make_model([node], inputs, [("y", code, wanted.shape)], {"w": arrays["w"]}, OPSET)
    model.ir_version = 10
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    (got,) = session.run(None, feeds)
    # Positions are rounded in float32 to 2 ** -20 of a pixel; up to 40 samples of up to 4.
    bound = {"float16": 2**-9, "float32": 2**-13, "float64": 2**-40}[form.dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("position", "shape", "words"),
    [
        (
            1,
            (4, 2, 2, 2),
            r"input 1 has the shape \(4, 2, 2, 2\); the others ask for \(4, 3, 2, 2\)",
        ),
        (2, (1, 8, 3, 4), r"input 2 has the shape"),
        (4, (1, 2, 4, 4), r"input 4 has the shape"),
    ],
)
def test_shapes_that_do_not_fit(position: int, shape: tuple[int, ...], words: str) -> None:
    shapes = [(1, 3, 5, 5), (4, 3, 2, 2), (1, 8, 4, 4), (4,), (1, 4, 4, 4)]
    shapes[position] = shape
    node = helper.make_node("DeformConv", [f"i{i}" for i in range(5)], ["y"])
    inputs = [(f"i{i}", 1, shape) for i, shape in enumerate(shapes)]
    model = make_model([node], inputs, [("y", 1, None)], opset=OPSET)
    model.ir_version = 10
    with pytest.raises(ModelError, match=words):
        import_onnx(model)


def one_node(x: tuple[int, ...], offset: tuple[int, ...], weight: NDArray, **attributes: Any) -> (
    onnx.ModelProto
):  # fmt: skip
    node = helper.make_node("DeformConv", ["x", "w", "o"], ["y"], **attributes)
    inputs = [("x", 1, x), ("o", 1, offset)]
    model = make_model([node], inputs, [("y", 1, None)], {"w": weight}, OPSET)
    model.ir_version = 10
    return model


def test_offset_groups_within_a_group() -> None:
    form = Form((1, 6, 3, 3), (1, 1), 2, (1, 1), (0, 0, 0, 0), (1, 1), 1, 2, extras=False)
    arrays = arrays_of(form)
    weight = arrays.pop("w")
    model = one_node(form.x, arrays["o"].shape, weight, offset_group=2)
    (got,) = tvm_hybrid.InferenceSession(model, num_threads=1).run(None, arrays)
    wanted = expected(form, {**arrays, "w": weight})
    np.testing.assert_allclose(got, wanted, rtol=2**-13, atol=2**-13)


def test_what_is_outside_takes_nothing_from_the_image() -> None:
    x = np.ones((1, 8, 3, 3), np.float32)
    x[:, :, 0, 0] = np.inf
    offset = np.zeros((1, 2, 3, 3), np.float32)
    offset[0, :, 0, 0] = 1e9, np.nan
    offset[0, 0, 0, 1:] = -0.5  # between the first row and the outside above it
    model = one_node(x.shape, offset.shape, np.ones((1, 8, 1, 1), np.float32))
    (got,) = tvm_hybrid.InferenceSession(model, num_threads=1).run(None, {"x": x, "o": offset})
    np.testing.assert_array_equal(got[0, 0], [[0, 4, 4], [8, 8, 8], [8, 8, 8]])


def test_channels_are_vectors_and_corners_lie_within_the_image() -> None:
    x, offset = (1, 16, 5, 4), (1, 18, 5, 4)
    weight = np.ones((2, 16, 3, 3), np.float32)
    mod = legalize_operators()(import_onnx(one_node(x, offset, weight, pads=[1] * 4)).mod)
    functions = {str(name.name_hint): function for name, function in mod.functions.items()}
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    columns, name = schedule_generic(functions["deform_columns"], Machine.from_target(target, 1))
    assert name == "generic_injective" and "T.vectorized(T.int64(8))" in str(columns.script())
    moved = random(1, 1, 9, 2, 5, 4, seed=5) * 8
    moved.flat[:3] = [1e9, -1e9, np.nan]
    starts = np.zeros((9, 2), np.int64)
    places = [np.full((1, 1, 9, 5, 4), -7, np.int32) for _ in range(4)]
    weights = [np.zeros((1, 1, 9, 5, 4), np.float32) for _ in range(4)]
    corners = functions["deform_corners"].with_attr("global_symbol", "corners")
    tensors = [tvm.runtime.tensor(each) for each in (moved, starts, *places, *weights)]
    tvm.compile(corners, target="llvm")["corners"](*tensors)
    for place, share in zip(tensors[2:6], tensors[6:], strict=True):
        assert ((place.numpy() >= 0) & (place.numpy() < 20)).all()
        assert (share.numpy() < 0).any() and (share.numpy() >= 0).any()
