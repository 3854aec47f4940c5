"""Convolutions and transposed convolutions of one to three spatial axes, with a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...expressions import Attrs, Converter, Expr, Inputs, known_dims, normalize, rank_of
from ..operators import operator
from .windows import check_channels, kernel_of, with_pads

_AXES = {1: "W", 2: "HW", 3: "DHW"}
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
        automatic = attrs.get("auto_pad", "NOTSET")
        if is_transposed and attrs.get("output_shape"):
            attrs = _of_output_shape(x, weight, attrs)
        elif is_transposed and automatic not in ("NOTSET", "VALID"):
            attrs = {**attrs, "pads": _transposed_pads(weight, attrs, automatic == "SAME_UPPER")}
        else:
            x, attrs = with_pads("Conv", x, kernel_of(weight, attrs), attrs)
        further: dict[str, Any] = {}
        if is_transposed:
            further["output_padding"] = attrs.get("output_padding", [0] * axes)
        result = normalize(
            operators[axes](
                x,
                weight,
                strides=attrs.get("strides", [1] * axes),
                padding=attrs.get("pads", [0] * (2 * axes)),
                dilation=attrs.get("dilations", [1] * axes),
                groups=attrs.get("group", 1),
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
    ones = [1] * len(extents)
    strides, dilations = (attrs.get(name) or ones for name in ("strides", "dilations"))
    added = list(attrs.get("output_padding") or [0] * len(extents))
    before, after = [], []
    for axis, wanted in enumerate(attrs["output_shape"][-len(extents) :]):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        natural = strides[axis] * (extents[axis] - 1) + added[axis] + span
        total = max(0, natural - wanted)
        small, large = total // 2, total - total // 2
        upper = attrs.get("auto_pad") == "SAME_UPPER"
        before.append(small if upper else large)
        after.append(large if upper else small)
        added[axis] += max(0, wanted - natural)
    return {**attrs, "pads": [*before, *after], "output_padding": added}


def _transposed_pads(weight: Expr, attrs: Attrs, upper: bool) -> list[int]:
    """With these, a transposed convolution makes `stride` results of each element."""
    kernel = attrs.get("kernel_shape") or known_dims(weight)[2:]
    ones = [1] * len(kernel)
    rows = zip(
        kernel,
        attrs.get("dilations", ones),
        attrs.get("output_padding", [0] * len(kernel)),
        attrs.get("strides", ones),
        strict=True,
    )
    totals = [
        max(0, (size - 1) * dilation + 1 + more - stride) for size, dilation, more, stride in rows
    ]
    small, large = [each // 2 for each in totals], [each - each // 2 for each in totals]
    return [*small, *large] if upper else [*large, *small]


operator("Conv")(_convolution(CONVOLUTIONS, "OI", is_transposed=False))
operator("ConvTranspose")(_convolution(_CONV_TRANSPOSE, "IO", is_transposed=True))
