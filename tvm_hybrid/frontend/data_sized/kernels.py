"""Serial kernels for operators that no formula for single elements describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from tir_schedules.core.emission import opaque_block

from ..expressions import Expr

INDEX = "int64"
Shape: TypeAlias = Sequence[Expr | int]
# Writes the statements of a kernel: what it reads, and what it writes.
Body: TypeAlias = Callable[[list[Expr], list[Expr]], None]


def emit_kernel(
    builder: relax.BlockBuilder,
    name: str,
    inputs: Sequence[Expr],
    outputs: Sequence[tuple[Shape, str]],
    body: Body,
) -> list[Expr]:
    """The results, of these shapes and types, of a kernel that is one serial block."""

    def compute(*tensors: te.Tensor) -> list[te.Tensor]:
        def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
            with IRBuilder() as kernel, opaque_block("steps"):
                body(list(ins), list(outs))
            return kernel.get()

        shapes, dtypes = [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
        return te.extern(shapes, list(tensors), statement, name=name, dtype=dtypes)

    result = builder.emit_te(compute, *inputs, primfunc_name_hint=name)
    if len(outputs) == 1:
        return [result]
    return [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(outputs))]


def index(value: int) -> Expr:
    """A number to count with."""
    return tirx.const(value, INDEX)


def put(buffer: Expr, value: Expr, *place: Expr | int) -> None:
    """Stores one element, the first unless told otherwise."""
    I.buffer_store(buffer, value, list(place) or [0])
