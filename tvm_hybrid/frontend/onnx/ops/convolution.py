"""Convolutions and transposed convolutions of one to three spatial axes, with a bias.

Rewrites have turned `auto_pad` and `output_shape` into `pads`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...expressions import Attrs, Converter, Expr, Inputs, known_dims, normalize, rank_of
from ..operators import operator

_AXES = {1: "W", 2: "HW", 3: "DHW"}
_CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
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
        further: dict[str, Any] = {}
        if is_transposed:
            further["output_padding"] = attrs.get("output_padding", [0] * axes)
        automatic = attrs.get("auto_pad", "NOTSET")
        if automatic == "VALID":
            attrs = {**attrs, "pads": [0] * (2 * axes)}
        elif is_transposed and automatic != "NOTSET":
            attrs = {**attrs, "pads": _transposed_pads(weight, attrs, automatic == "SAME_UPPER")}
        elif automatic != "NOTSET":
            raise ValueError(f"auto_pad={automatic} of sizes that are not known")
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


operator("Conv")(_convolution(_CONV, "OI", is_transposed=False))
operator("ConvTranspose")(_convolution(_CONV_TRANSPOSE, "IO", is_transposed=True))
