"""DeformConv with dynamic batch and image sizes: one program, compared with float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import FeedError, ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import run_imported
from .test_deform_conv import Form, arrays_of, expected

PLAIN = Form((2, 3, 5, 6), (2, 3), 4, (1, 1), (0, 0, 0, 0), (1, 1), extras=False)
GROUPS = Form((2, 4, 7, 6), (3, 2), 6, (2, 1), (1, 2, 0, 1), (1, 2), 2, 2)
LINE = Form((2, 2, 9), (3,), 2, (2,), (1, 1), (2,))
# A form, and names of its dynamic sizes.
CASES: dict[str, tuple[Form, int | str, list[int | str]]] = {
    "all": (GROUPS, "n", ["h", "w"]),
    "batch": (GROUPS, "n", [7, 6]),
    "line": (LINE, 2, ["w"]),
}
BOUND = 2**-13  # as with static sizes: positions are rounded in float32


def model_of(
    form: Form, weights: dict[str, NDArray], batch: int | str, extents: list[int | str]
) -> onnx.ModelProto:
    """A model whose offsets and mask have separately named sizes."""
    build, rank, taps = OnnxBuilder(22), len(form.kernel), int(np.prod(form.kernel))
    outputs: list[int | str] = [
        f"out_{size}" if isinstance(size, str) else form.outputs[axis]
        for axis, size in enumerate(extents)
    ]
    x = build.input("x", [batch, form.x[1], *extents])
    offset = build.input("o", [batch, form.offset_group * taps * rank, *outputs])
    more = []
    if form.extras:
        mask = build.input("m", [batch, form.offset_group * taps, *outputs])
        more = [build.constant(weights["b"]), mask]
    y = build.node(
        "DeformConv", x, build.constant(weights["w"]), offset, *more, strides=form.strides,
        pads=form.pads, dilations=form.dilations, group=form.group,
        offset_group=form.offset_group,
    )  # fmt: skip
    build.output(y, None)
    return build.model()


def changed(form: Form, batch: int, extents: list[int], weights: dict[str, NDArray]) -> tuple[
    Form, dict[str, NDArray]
]:  # fmt: skip
    """The form and arrays of another image with these weights."""
    other = replace(form, x=(batch, form.x[1], *extents))
    return other, arrays_of(other) | weights


def fed(arrays: dict[str, NDArray]) -> dict[str, NDArray]:
    return {name: array for name, array in arrays.items() if name not in "wb"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_sizes(name: str) -> None:
    form, batch, extents = CASES[name]
    weights = {key: array for key, array in arrays_of(form).items() if key in "wb"}
    model = model_of(form, weights, batch, extents)
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for images, growth in ((1, 0), (3, 4), (2, 1)):
        images = batch if isinstance(batch, int) else images
        sizes = [n + growth if isinstance(e, str) else n
                 for n, e in zip(form.x[2:], extents, strict=True)]  # fmt: skip
        other, arrays = changed(form, images, sizes, weights)
        (got,) = session.run(None, fed(arrays))
        np.testing.assert_allclose(got, expected(other, arrays), rtol=BOUND, atol=BOUND)


def test_numbers_are_those_of_known_sizes() -> None:
    weights = {key: array for key, array in arrays_of(LINE).items() if key in "wb"}
    model, feeds = model_of(LINE, weights, "n", ["w"]), fed(arrays_of(LINE))
    (got,) = InferenceSession(model, num_threads=1).run(None, feeds)
    known = import_onnx(model, {key: array.shape for key, array in feeds.items()})
    # Both are within the bound of the exact value.
    (wanted,) = run_imported(known, feeds)
    np.testing.assert_allclose(got, wanted, rtol=2 * BOUND, atol=2 * BOUND)


def test_as_the_reference_has_it_and_without_images() -> None:
    """Offsets are small: the reference samples far ones elsewhere; also an empty batch."""
    weights = {"w": arrays_of(PLAIN)["w"]}
    model = model_of(PLAIN, weights, "n", ["h", "w"])
    session, peer = InferenceSession(model, num_threads=1), ReferenceEvaluator(model)
    _, arrays = changed(PLAIN, 2, [4, 7], weights)
    feeds = {"x": arrays["x"], "o": np.full_like(arrays["o"], 0.25)}
    (wanted,) = peer.run(None, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], wanted, rtol=BOUND, atol=BOUND)
    assert session.run(None, {key: array[:0] for key, array in feeds.items()})[0].size == 0
    for misfit in (feeds["o"][:1], feeds["o"][..., 1:]):
        with pytest.raises(FeedError):
            session.run(None, {**feeds, "o": misfit})


def test_sizes_that_are_known_are_held_against_each_other() -> None:
    weights = {"w": arrays_of(PLAIN)["w"]}
    model = model_of(PLAIN, weights, "n", [5, "w"])
    model.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 3
    with pytest.raises(
        ModelError, match=r"\(n, 12, 3, out_w\); the others ask for \(n, 12, 4, w - 2\)"
    ):
        import_onnx(model, keep_dynamic=True)


def test_channels_must_be_known() -> None:
    model = model_of(PLAIN, {"w": arrays_of(PLAIN)["w"]}, "n", [5, 6])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"
    with pytest.raises(UnsupportedOperatorError, match=r"DeformConv0.* channels must be known"):
        import_onnx(model, keep_dynamic=True)
