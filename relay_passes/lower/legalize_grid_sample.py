"""Legalises R.image.grid_sample in generic code, with channels last while it samples.

Before

    lv = R.image.grid_sample(x, grid)                    # x: [N, C, H, W]

After

    lv = R.call_tir(transpose, (x,))                     # [N, H, W, C]
    lv1 = R.call_tir(grid_sample, (lv, grid))            # [N, OH, OW, C]
    lv2 = R.call_tir(transpose1, (lv1,))                 # [N, C, OH, OW]

The channels of a pixel are then vectors, and places and weights are computed once for all of them.
Otherwise each element is gathered by itself. Few channels fill no vector: TVM legalises them, and
those whose number is dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx, topi

from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from tir_schedules.generic.expressions import const_int, substitute

LEAST_CHANNELS = 4
"""Channels that are worth two reorders of the image."""


@dataclass(frozen=True)
class _ChannelsFirst:
    """Pixels [N, *extents, C] as TVM's operator reads them: [N, C, *extents]."""

    pixels: te.Tensor

    @property
    def dtype(self) -> str:
        return str(self.pixels.dtype)

    @property
    def shape(self) -> list[tirx.Expr]:
        batch, *extents, channels = self.pixels.shape
        return [batch, channels, *extents]

    def __getitem__(self, at: tuple[tirx.Expr, ...]) -> tirx.Expr:
        image, channel, *place = at
        return self.pixels(image, *place, channel)


def grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Samples of an image with channels last, if they are worth it."""
    data, grid = call.args
    shape = data.ty.shape
    channels = const_int(shape.values[1]) if isinstance(shape, relax.ShapeExpr) else None
    if channels is None or channels < LEAST_CHANNELS:
        return legalize_by_tvm(builder, call)
    attrs = call.attrs

    def compute(pixels: te.Tensor, grid: te.Tensor) -> te.Tensor:
        sampled = topi.image.grid_sample(
            _ChannelsFirst(pixels), grid, str(attrs.method), str(attrs.layout),
            str(attrs.padding_mode), bool(attrs.align_corners),
        )  # fmt: skip
        own = sampled.op
        assert isinstance(own, te.ComputeOp)
        image, channel, *place = (axis.var for axis in own.axis)

        def element(*at: tirx.Var) -> tirx.Expr:
            values = dict(zip([image, *place, channel], at, strict=True))
            return substitute(own.body[0], values)

        batch, _, *outputs = sampled.shape
        return te.compute([batch, *outputs, channels], element, name="grid_sample")

    rank = len(shape.values)
    pixels = _permuted(builder, data, [0, *range(2, rank), 1])
    sampled = builder.emit(builder.call_te(compute, pixels, grid, primfunc_name_hint="grid_sample"))
    return builder.call_te(topi.transpose, sampled, axes=[0, rank - 1, *range(1, rank - 1)])


def _permuted(builder: relax.BlockBuilder, value: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return builder.emit(builder.call_te(topi.transpose, value, axes=list(axes)))


LEGALIZATIONS: dict[str, Legalize] = {"relax.image.grid_sample": grid_sample}
