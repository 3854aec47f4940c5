"""The second face of a microkernel: a TensorIntrin, for `sch.tensorize`.

The intrinsic's meaning is C[i, j] += sum over k of A[i, k] * B[k, j] on a rows x columns tile with
the whole of K; its implementation is the microkernel's own `emit`, started from C.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder

from .errors import IsaError
from .microkernel import Microkernel
from .vectors import Expr, ramp, splat


def register_tensor_intrin(kernel: Microkernel, rows: int, columns: int, k: int) -> str:
    """Registers a tile of a microkernel with TVM.

    Parameters
    ----------
    kernel : Microkernel
        One whose operands need no interleaving (kr = 1).
    rows, columns, k : int
        The tile: at most mr rows, a multiple of `lanes` columns up to nr.

    Returns
    -------
    str
        The name for `sch.tensorize`; registering the same tile again is harmless.

    Raises
    ------
    IsaError
        If the kernel has no such tile.
    """
    if kernel.kr != 1 or columns % kernel.lanes or columns > kernel.nr or not 0 < rows <= kernel.mr:
        raise IsaError(f"{kernel.name} has no {rows}x{columns} tile for a TensorIntrin")
    name = f"tvm_hybrid.{kernel.name}.{rows}x{columns}x{k}"
    description = _description(kernel, rows, columns, k)
    TensorIntrin.register(
        name, description, _implementation(kernel, rows, columns, k), override=True
    )
    return name


def _description(kernel: Microkernel, rows: int, columns: int, k: int) -> tirx.PrimFunc:
    """What the tile computes, in scalar code."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("description")
        a, b, c = _tile_buffers(kernel, rows, columns, k, strided=False)
        with I.sblock("root"):
            _regions(a, b, c, rows, columns, k)
            with I.grid(rows, columns, k) as (i, j, step), I.sblock("update"):
                vi, vj, vk = I.axis.remap("SSR", [i, j, step])
                I.buffer_store(c, c[vi, vj] + a[vi, vk] * b[vk, vj], [vi, vj])
    return builder.get()


def _implementation(kernel: Microkernel, rows: int, columns: int, k: int) -> tirx.PrimFunc:
    """The microkernel on strided operands, accumulating into C."""
    lanes = kernel.lanes
    vectors = columns // lanes
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("implementation")
        a, b, c = _tile_buffers(kernel, rows, columns, k, strided=True)
        with I.sblock("root"):
            _regions(a, b, c, rows, columns, k)
            # Buffers allocated in the root block are dropped by tensorize, hence another block.
            with I.sblock("body"):
                _regions(a, b, c, rows, columns, k)
                tile = kernel.emit(
                    rows,
                    vectors,
                    (k,),
                    lambda i, ks: splat(a[i, ks[0]], lanes),
                    lambda j, ks: b[ks[0], ramp(j * lanes, lanes)],
                    lambda i, j: c[i, ramp(j * lanes, lanes)],
                )
                for i in range(rows):
                    for j in range(vectors):
                        I.buffer_store(c, tile.value(i, j), [i, ramp(j * lanes, lanes)])
    return builder.get()


def _tile_buffers(
    kernel: Microkernel, rows: int, columns: int, k: int, strided: bool
) -> tuple[Expr, Expr, Expr]:
    """Parameters A, B and C of a tile."""

    def parameter(name: str, shape: tuple[int, int], dtype: str) -> Expr:
        handle = I.arg(name.lower(), I.handle())
        if not strided:
            return I.match_buffer(handle, shape, dtype, offset_factor=1)
        stride = tirx.Var(f"stride_{name.lower()}", "int32")
        return I.match_buffer(handle, shape, dtype, strides=[stride, 1], offset_factor=1)

    return (
        parameter("A", (rows, k), kernel.a_dtype),
        parameter("B", (k, columns), kernel.b_dtype),
        parameter("C", (rows, columns), kernel.acc_dtype),
    )


def _regions(a: Expr, b: Expr, c: Expr, rows: int, columns: int, k: int) -> None:
    I.reads(c[0:rows, 0:columns], a[0:rows, 0:k], b[0:k, 0:columns])
    I.writes(c[0:rows, 0:columns])
