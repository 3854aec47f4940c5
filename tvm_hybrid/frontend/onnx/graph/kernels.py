"""Kernels as converters write them: loops in TIR, element by element, and sizes that they find."""

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
# Writes the statements of a kernel, given what it reads, what it writes, and sizes.
Body: TypeAlias = Callable[..., None]


def emit_kernel(
    name: str, inputs: Sequence[Expr], outputs: Results, body: Body, sizes: Shape = ()
) -> list[Expr]:
    """The results, of these shapes and types, of a kernel that is one serial block.

    Where sizes depend on data, the kernel has names of its own for them: the body reads them off
    its tensors, or gets them behind these. It is never fused: TVM takes some for elementwise.
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
    """The fields of a tuple; a tensor is one by itself."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    return [emit(relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))]


def emit_alone(
    name: str, compute: Callable[..., Any], *args: Any, marks: Mapping[str, Any] | None = None
) -> relax.Var:
    """The results of a kernel that stays by itself.

    In one kernel with what reads it, a table would be computed for every element.
    """
    attrs = {OP_PATTERN: OPAQUE, **(marks or {})}
    return ex.emit_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=attrs)


def put(buffer: Expr, value: Expr, *place: Expr | int) -> None:
    """Stores one element, the first unless told otherwise."""
    I.buffer_store(buffer, value, list(place) or [0])


def cell(dtype: str = INDEX) -> Expr:
    """Memory of the kernel's own for one element."""
    return I.sblock_alloc_buffer([1], dtype)


def table(extent: Expr, dtype: str = INDEX) -> Expr:
    """Memory of the kernel's own for so many numbers, and for one at least; 0 at first.

    TVM cuts off what no loop visits, and takes an index out of memory for the only one.
    """
    buffer = I.sblock_alloc_buffer([te.max(extent, index(1))], dtype)
    with I.serial(te.max(extent, index(1))) as place:
        put(buffer, tirx.const(0, dtype), place)
    return buffer


def size_in(count: Expr) -> tirx.Var:
    """The only element of an int64 vector, as a size; the shapes behind it are in its terms."""
    shape = emit(relax.op.tensor_to_shape(count))
    size = new_size()
    ex.match_cast(shape, relax.ShapeType([size]))
    return size


def sizes_in(checked: Expr) -> list[Expr]:
    """The elements of an int64 vector behind its first one, as sizes.

    The program checks that the first is 1: a kernel has 0 there if the sizes make no sense.
    """
    (count,) = ex.known_dims(checked)
    shape = emit(relax.op.tensor_to_shape(checked))
    sizes = [new_size() for _ in range(count - 1)]
    ex.match_cast(shape, relax.ShapeType([1, *sizes]))
    return list(sizes)


def pick(data: Expr, places: Expr, count: Expr, axis: int) -> Expr:
    """The slices of `data` at the first `count` places along an axis."""
    shape = [*dims_of(data)[:axis], count, *dims_of(data)[axis + 1 :]]

    def element(i: Place, data: te.Tensor, places: te.Tensor) -> Expr:
        return data(*i[:axis], places[i[axis]], *i[axis + 1 :])

    return emit_each("picked", shape, element, data, places, hint="pick")


def cut(data: Expr, count: Expr) -> Expr:
    """The first `count` slices along the first axis."""
    shape = [count, *dims_of(data)[1:]]
    return emit_each("cut", shape, lambda i, data: data(*i), data, hint="cut")


def reshaped_to(data: Expr, sizes: Sequence[Expr]) -> Expr:
    """The elements in another shape: a view where the number of elements is known to be equal."""
    data = ex.normalize(data)
    if same_size(product(sizes), product(dims_of(data))):
        return ex.normalize(relax.op.reshape(data, relax.ShapeExpr(list(sizes))))
    return copied(data, sizes)


def copied(data: Expr, sizes: Sequence[Expr]) -> Expr:
    """A copy with other sizes, as many elements as before."""

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
