"""Convolutions and transposed convolutions of one to three spatial axes, with a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...expressions import Attrs, Converter, Expr, Inputs, known_dims, normalize, rank_of
from ..operators import operator
from .pooling import window_form
from .windows import check_channels, kernel_of, shared_pads, with_pads

_AXES = {1: "W", 2: "HW", 3: "DHW"}
_ATTRIBUTES = {"strides": "strides", "padding": "pads", "dilation": "dilations", "groups": "group"}
CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_CONV_TRANSPOSE = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}


def _convolution(
    operators: dict[int, Callable[..., Expr]], kernel_layout: str, is_transposed: bool
) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x, weight = inputs[:2]
        axes = rank_of(x) - 2
        if axes not in operators:
            raise ValueError(f"{axes} spatial axes, where 1 to 3 are supported")
        check_channels(x, weight, attrs, is_transposed)
        attrs = window_form(attrs, axes)
        automatic = attrs.get("auto_pad", "NOTSET")
        if is_transposed and attrs.get("output_shape"):
            attrs = _of_output_shape(x, weight, attrs)
        elif is_transposed and automatic not in ("NOTSET", "VALID"):
            attrs["pads"] = _transposed_pads(weight, attrs, automatic == "SAME_UPPER")
        else:
            x, attrs = with_pads("Conv", x, kernel_of(weight, attrs), attrs)
        further = {"output_padding": attrs["output_padding"]} if is_transposed else {}
        result = normalize(
            operators[axes](
                x,
                weight,
                **{name: attrs[own] for name, own in _ATTRIBUTES.items()},
                data_layout=f"NC{_AXES[axes]}",
                kernel_layout=f"{kernel_layout}{_AXES[axes]}",
                **further,
            )
        )
        bias = inputs[2]
        if bias is None:
            return result
        return relax.op.add(result, relax.op.reshape(bias, [1, -1, *([1] * axes)]))

    return convert


def _of_output_shape(x: Expr, weight: Expr, attrs: Attrs) -> Attrs:
    """With pads in the place of `output_shape`.

    If the result is too large, it is cropped on both sides, an odd element at the beginning unless
    auto_pad is SAME_UPPER. If it is too small, it is padded at its end, as ONNX Runtime does.
    """
    extents, kernel = known_dims(x)[2:], known_dims(weight)[2:]
    strides, dilations, added = attrs["strides"], attrs["dilations"], [*attrs["output_padding"]]
    totals = []
    for axis, wanted in enumerate(attrs["output_shape"][-len(extents) :]):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        natural = strides[axis] * (extents[axis] - 1) + added[axis] + span
        totals.append(max(0, natural - wanted))
        added[axis] += max(0, wanted - natural)
    pads = shared_pads(totals, attrs.get("auto_pad") == "SAME_UPPER")
    return {**attrs, "pads": pads, "output_padding": added}


def _transposed_pads(weight: Expr, attrs: Attrs, upper: bool) -> list[int]:
    """With these, a transposed convolution makes `stride` results of each element."""
    kernel = attrs.get("kernel_shape") or known_dims(weight)[2:]
    forms = (attrs[name] for name in ("dilations", "output_padding", "strides"))
    totals = [
        max(0, (size - 1) * dilation + 1 + more - stride)
        for size, dilation, more, stride in zip(kernel, *forms, strict=True)
    ]
    return shared_pads(totals, upper)


operator("Conv")(_convolution(CONVOLUTIONS, "OI", is_transposed=False))
operator("ConvTranspose")(_convolution(_CONV_TRANSPOSE, "IO", is_transposed=True))
