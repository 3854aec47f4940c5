"""Serial kernels for operators that no formula for single elements describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from tir_schedules.core.emission import opaque_block

from ..expressions import Expr

INDEX = "int64"
Shape: TypeAlias = Sequence[Expr | int]
# Writes the statements of a kernel, given what it reads, what it writes, and sizes.
Body: TypeAlias = Callable[..., None]


def emit_kernel(
    builder: relax.BlockBuilder,
    name: str,
    inputs: Sequence[Expr],
    outputs: Sequence[tuple[Shape, str]],
    body: Body,
    sizes: Shape = (),
) -> list[Expr]:
    """The results, of these shapes and types, of a kernel that is one serial block.

    Where sizes depend on data, the kernel has names of its own for them: the body reads them off
    its tensors, or gets them behind these. It is never fused: TVM takes some for elementwise.
    """

    def compute(tensors: list[te.Tensor], sizes: list[Expr]) -> list[te.Tensor]:
        def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
            with IRBuilder() as kernel, opaque_block("steps"):
                body(list(ins), list(outs), *sizes)
            return kernel.get()

        shapes, dtypes = [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
        return te.extern(shapes, tensors, statement, name=name, dtype=dtypes)

    result = builder.emit_te(
        compute,
        list(inputs),
        list(sizes),
        primfunc_name_hint=name,
        primfunc_attrs={OP_PATTERN: OPAQUE},
    )
    if len(outputs) == 1:
        return [result]
    return [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(outputs))]


def index(value: int) -> Expr:
    """A number to count with."""
    return tirx.const(value, INDEX)


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
