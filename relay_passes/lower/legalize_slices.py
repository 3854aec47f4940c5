"""Legalises R.dynamic_strided_slice, so that no bounds and no steps end the process.

Before

    lv = R.dynamic_strided_slice(x, begins, ends, steps)    # x: (n, 6)

After

    lv1 = R.call_tir(slice_sizes, (begins, ends, steps, n))    # [1, size 0, size 1]
    lv2: R.Shape([1, s0, s1]) = R.tensor_to_shape(lv1)
    lv = R.call_tir(dynamic_strided_slice, (x, begins, steps))

The first element is 0 if a step is, and the program ends with an error there. TVM's own function
for sizes divides by such a step, which ends the process. Its sizes are below 0 where the end lies
before the beginning, and for steps near the ends of int64.
"""

from __future__ import annotations

from tvm import relax, te, tirx, topi

from microkernels.base.tvm_compat.relax import Legalize


def _dynamic_strided_slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, *bounds = call.args
    extents = list(data.ty.shape.values)
    found = builder.emit(
        builder.call_te(_sizes, *bounds, extents, primfunc_name_hint="slice_sizes")
    )
    shape = builder.emit(relax.op.tensor_to_shape(builder.emit(found)))
    sizes = [tirx.Var("s", "int64") for _ in extents]
    builder.match_cast(shape, relax.ShapeType([1, *sizes]))
    return builder.call_te(topi.dynamic_strided_slice, *call.args, output_shape=sizes)


def _sizes(
    begins: te.Tensor, ends: te.Tensor, steps: te.Tensor, extents: list[tirx.Expr]
) -> te.Tensor:
    """Whether no step is 0, and the result's size along every axis."""
    zero, one = _index(0), _index(1)

    def element(place: tirx.Var) -> tirx.Expr:
        bad = [tirx.EQ(steps(axis), zero) for axis in range(len(extents))]
        found: tirx.Expr = tirx.Select(tirx.any(*bad), zero, one)
        for axis, extent in enumerate(extents):
            size = _count(begins(axis), ends(axis), steps(axis), extent)
            found = tirx.Select(tirx.EQ(place, tirx.const(axis + 1, place.ty.dtype)), size, found)
        return found

    return te.compute((len(extents) + 1,), element, name="sizes")


def _count(begin: tirx.Expr, end: tirx.Expr, step: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    """How many elements there are from a bound to another; by a step of 0 as by 1."""
    zero, one = _index(0), _index(1)
    upwards = step > zero
    low = tirx.Select(upwards, zero, _index(-1))
    high = tirx.Select(upwards, extent, extent - one)
    first, last = (
        te.max(te.min(tirx.Select(bound < zero, bound + extent, bound), high), low)
        for bound in (begin, end)
    )
    length = te.max(tirx.Select(upwards, last - first, first - last), zero)
    # No sum below overflows: a step beyond the axis is as good as the axis.
    most = te.max(extent, one)
    within = te.max(te.min(step, most), zero - most)
    stride = te.max(tirx.Select(upwards, within, zero - within), one)
    return tirx.floordiv(length + stride - one, stride)


def _index(number: int) -> tirx.Expr:
    return tirx.const(number, "int64")


LEGALIZATIONS: dict[str, Legalize] = {"relax.dynamic_strided_slice": _dynamic_strided_slice}
