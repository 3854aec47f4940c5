"""Kernels as converters write them: serial loops in TIR, and sizes that kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from tir_schedules.core.emission import opaque_block
from tir_schedules.generic.schedule import WHOLE_COPY

from ... import expressions as ex
from ...expressions import Expr, Place, emit, emit_each
from .freeze_shapes import new_size
from .sizes import INDEX, dims_of, index, product, same_size

Shape: TypeAlias = Sequence[Expr | int]
Results: TypeAlias = Sequence[tuple[Shape, str]]
# Writes the statements of a kernel, given its inputs, its outputs, and sizes.
Body: TypeAlias = Callable[..., None]


def emit_kernel(
    name: str, inputs: Sequence[Expr], outputs: Results, body: Body, sizes: Shape = ()
) -> list[Expr]:
    """Results, with these shapes and types, of a kernel that is one serial block.

    The kernel has its own names for dynamic sizes: the body reads them from its tensors, or gets
    `sizes` after the tensors. It is never fused: TVM takes some such kernels for elementwise.
    """

    def compute(tensors: list[te.Tensor], sizes: list[Expr]) -> list[te.Tensor]:
        def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
            with IRBuilder() as kernel, opaque_block("steps"):
                body(*ins, *outs, *sizes)
            return kernel.get()

        shapes, dtypes = [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
        return te.extern(shapes, tensors, statement, name=name, dtype=dtypes)

    return fields(emit_alone(name, compute, list(inputs), list(sizes)))


def fields(value: Expr) -> list[Expr]:
    """The fields of a tuple; a tensor counts as its only field."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    return [emit(relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))]


def emit_alone(
    name: str, compute: Callable[..., Any], *args: Any, marks: Mapping[str, Any] | None = None
) -> relax.Var:
    """Results of a kernel that is never fused.

    If it were fused into the kernel that reads it, a table would be computed for every element.
    """
    attrs = {OP_PATTERN: OPAQUE, **(marks or {})}
    return ex.emit_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=attrs)


def put(buffer: Expr, value: Expr, *place: Expr | int) -> None:
    """Stores one element, by default at index 0."""
    I.buffer_store(buffer, value, list(place) or [0])


def cell(dtype: str = INDEX) -> Expr:
    """Allocates one element in the kernel."""
    return I.sblock_alloc_buffer([1], dtype)


def table(extent: Expr, dtype: str = INDEX) -> Expr:
    """Allocates `extent` elements in the kernel, at least one, and sets them to 0.

    The loop is needed: TVM removes elements that no loop visits, and treats an index that is read
    from memory as the only one.
    """
    buffer = I.sblock_alloc_buffer([te.max(extent, index(1))], dtype)
    with I.serial(te.max(extent, index(1))) as place:
        put(buffer, tirx.const(0, dtype), place)
    return buffer


def size_in(count: Expr) -> tirx.Var:
    """The only element of an int64 vector as a size; shapes of later operators use it."""
    shape = emit(relax.op.tensor_to_shape(count))
    size = new_size()
    ex.match_cast(shape, relax.ShapeType([size]))
    return size


def sizes_in(checked: Expr) -> list[Expr]:
    """All elements of an int64 vector but the first, as sizes.

    The program checks that the first is 1; a kernel writes 0 there if the sizes make no sense.
    """
    (count,) = ex.known_dims(checked)
    shape = emit(relax.op.tensor_to_shape(checked))
    sizes = [new_size() for _ in range(count - 1)]
    ex.match_cast(shape, relax.ShapeType([1, *sizes]))
    return list(sizes)


def pick(data: Expr, places: Expr, count: Expr, axis: int) -> Expr:
    """The slices of `data` at the first `count` indices in `places` along an axis."""
    shape = [*dims_of(data)[:axis], count, *dims_of(data)[axis + 1 :]]

    def element(i: Place, data: te.Tensor, places: te.Tensor) -> Expr:
        return data(*i[:axis], places[i[axis]], *i[axis + 1 :])

    return emit_each("picked", shape, element, data, places, hint="pick")


def cut(data: Expr, count: Expr) -> Expr:
    """The first `count` slices along the first axis."""
    shape = [count, *dims_of(data)[1:]]
    return emit_each("cut", shape, lambda i, data: data(*i), data, hint="cut")


def reshaped_to(data: Expr, sizes: Sequence[Expr]) -> Expr:
    """Reshapes a value: a view if the number of elements is known to be equal, else a copy."""
    data = ex.normalize(data)
    if same_size(product(sizes), product(dims_of(data))):
        return ex.normalize(relax.op.reshape(data, relax.ShapeExpr(list(sizes))))
    return copied(data, sizes)


def copied(data: Expr, sizes: Sequence[Expr]) -> Expr:
    """A copy with other sizes and as many elements."""

    def element(place: Place, data: te.Tensor, sizes: list[Expr]) -> Expr:
        flat = index(0)
        for position, size in zip(place, sizes, strict=True):
            flat = flat * size + position
        found = []
        for size in reversed(data.shape):
            found.append(tirx.floormod(flat, te.max(size, 1)))
            flat = tirx.floordiv(flat, te.max(size, 1))
        return data(*reversed(found))

    own = {WHOLE_COPY: True}
    return emit_each("reshaped", sizes, element, data, list(sizes), hint="reshape", **own)
