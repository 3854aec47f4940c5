"""Converters of operators along one axis, often that of time.

operator           Relax
CumSum, CumProd    R.cumsum, R.cumprod, between two R.flip if reverse=1
ReverseSequence    a kernel: y[t] = x[length - 1 - t] for t < length, else x[t]
TensorScatter      a kernel: y[s] = update[s - start] for 0 <= s - start < count, else past[s]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from relay_passes.lower.update_rows import ROW_UPDATE

from .data_sized.requests import check, check_equal
from .data_sized.sizes import dims_of
from .expressions import (
    Converter,
    Expr,
    cast,
    constant,
    dtype_of,
    given,
    rank_of,
)

# Types whose sums and products round too often.
_NARROW = ("float16", "bfloat16")


def _scan(operator: Callable[..., Expr]) -> Converter:
    """Running sums or products; those of narrow floats in float32."""

    def convert(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
        x, place = inputs[0], constant(inputs[1])
        if place is None:
            raise ValueError("the axis must be a constant")
        axis, dtype = int(place.item()), dtype_of(x)
        rank = rank_of(x)
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} of a tensor of rank {rank}")
        axis %= rank
        if dtype in _NARROW:
            x = cast(builder, x, "float32")
        if attrs.get("reverse", 0):
            x = builder.normalize(relax.op.flip(x, axis))
        x = builder.normalize(operator(x, axis, exclusive=bool(attrs.get("exclusive", 0))))
        if attrs.get("reverse", 0):
            x = builder.normalize(relax.op.flip(x, axis))
        return cast(builder, x, dtype)

    return convert


def _reverse_sequence(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    x, lengths = inputs
    dims, time, batch = dims_of(x), attrs.get("time_axis", 0), attrs.get("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise ValueError(f"time_axis={time} and batch_axis={batch} are not 0 and 1 or 1 and 0")
    if rank_of(lengths) != 1:
        raise ValueError("sequence_lens is no vector")
    check_equal(
        builder,
        dims_of(lengths)[0],
        dims[batch],
        "sequence_lens has not one element for each sequence",
    )

    def compute(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            step = place[time].astype("int64")
            length = lengths[place[batch]]
            source = te.if_then_else(step < length, length - 1 - step, step)
            # A length comes from the user's feeds: held inside, it reads no foreign memory.
            source = te.max(te.min(source, x.shape[time] - 1), 0)
            return x[(*place[:time], source, *place[time + 1 :])]

        return te.compute(dims, element, name="reverse_sequence")

    return builder.emit_te(compute, x, lengths, primfunc_name_hint="reverse_sequence")


def _tensor_scatter(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    past, update, starts = inputs[0], inputs[1], given(inputs, 2)
    dims, mode = dims_of(past), attrs.get("mode", b"linear")
    axis = attrs.get("axis", -2)
    if mode not in (b"linear", b"circular"):
        raise ValueError(f"mode={mode!r} is neither linear nor circular")
    if not -len(dims) < axis < len(dims) or axis == 0:
        raise ValueError(f"axis {axis} of a tensor of rank {len(dims)}; axis 0 is the batch")
    axis %= len(dims)
    new = dims_of(update)
    misfit = "an update that does not fit into the cache"
    if len(new) != len(dims):
        raise ValueError(misfit)
    for place, (size, own) in enumerate(zip(new, dims, strict=True)):
        if place != axis:
            check_equal(builder, size, own, misfit)
    check(builder, new[axis] <= dims[axis], misfit)
    if starts is None:
        starts = builder.normalize(relax.op.zeros((dims[0],), "int64"))
    check_equal(builder, dims_of(starts)[0], dims[0])

    def compute(past: te.Tensor, update: te.Tensor, starts: te.Tensor) -> te.Tensor:
        extent, count = past.shape[axis], update.shape[axis]

        def element(*place: Expr) -> Expr:
            source = place[axis].astype("int64") - starts[place[0]]
            if mode == b"circular":
                source = tirx.floormod(source, extent)
            inside = te.all(source >= 0, source < count)
            held = te.max(te.min(source, count - 1), 0)
            written = update[(*place[:axis], held, *place[axis + 1 :])]
            return te.if_then_else(inside, written, past[place])

        return te.compute(dims, element, name="tensor_scatter")

    in_rows = mode == b"linear" and axis == len(dims) - 2 > 0
    marks = {ROW_UPDATE: [1, 2, 0]} if in_rows else {}
    named = {"primfunc_name_hint": "tensor_scatter", "primfunc_attrs": marks}
    return builder.emit_te(compute, past, update, starts, **named)


SEQUENCE_CONVERTERS: dict[str, Converter] = {
    "CumProd": _scan(relax.op.cumprod),
    "CumSum": _scan(relax.op.cumsum),
    "ReverseSequence": _reverse_sequence,
    "TensorScatter": _tensor_scatter,
}
