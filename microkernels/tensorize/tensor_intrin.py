"""A microkernel as a TensorIntrin, for `sch.tensorize`.

The intrinsic's meaning, on a rows x columns tile with the whole of K, is

    C[i, j] += acc(A[i, k]) * acc(B[k // kr, j, k % kr])        kr > 1
    C[i, j] += acc(A[i, k]) * acc(B[k, j])                      kr = 1

where `acc` casts to the accumulators' type if the operand has another one. This is what a matmul
becomes when `transform_layout` gives its weight the index map (k, j) -> (k // kr, j, k % kr). With
groups, K is two loops, and the first operand is seen as [M, K/kr, kr]:

    C[i, j] += acc(A[i, g, s]) * acc(B[g, j, s])

The implementation is the microkernel's own `emit`, started from C.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder

from microkernels.base.errors import IsaError
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.microkernel import Microkernel
from microkernels.vector.bfloat16 import operand_bits
from microkernels.vector.expressions import Expr, Index, cast, ramp


def register_tensor_intrin(
    kernel: Microkernel, rows: int, columns: int, k: int, groups: bool = False
) -> str:
    """Registers a tile of a microkernel with TVM.

    Parameters
    ----------
    kernel : Microkernel
        The tile's instruction set and types.
    rows, columns, k : int
        The tile: at most mr rows, a multiple of `lanes` columns up to nr, a multiple of kr in K.
    groups : bool
        Whether K is in groups of kr, as MetaSchedule's rules need it: they take only programs
        whose every index is a loop's variable. It has no effect if kr is 1.

    Returns
    -------
    str
        The name for `sch.tensorize`; registering the same tile again is harmless.

    Raises
    ------
    IsaError
        If the kernel has no such tile; or if its accumulators are AMX tiles, which outlive the
        block that one intrinsic replaces.
    """
    if isinstance(kernel, AmxMicrokernel):
        raise IsaError(
            f"{kernel.name} keeps its accumulators in tile registers, which one intrinsic cannot "
            "express: take a vector kernel of the same types"
        )
    whole = columns % kernel.lanes == 0 and k % kernel.kr == 0
    if not (whole and 0 < rows <= kernel.mr and 0 < columns <= kernel.nr and k > 0):
        raise IsaError(
            f"{kernel.name} has no {rows}x{columns}x{k} tile; at most {kernel.mr} rows, "
            f"{kernel.nr} columns in vectors of {kernel.lanes}, and K in steps of {kernel.kr}"
        )
    groups = groups and kernel.kr > 1
    name = f"tvm_hybrid.{kernel.name}.{rows}x{columns}x{k}{'.groups' if groups else ''}"
    tile = kernel, rows, columns, k, groups
    TensorIntrin.register(name, _description(*tile), _implementation(*tile), override=True)
    return name


def _description(
    kernel: Microkernel, rows: int, columns: int, k: int, groups: bool
) -> tirx.PrimFunc:
    """What the tile computes, in scalar code."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("description")
        a, b, c = _tile_buffers(kernel, rows, columns, k, groups, strided=False)
        with I.sblock("root"):
            _regions(a, b, c)
            update = _update_of_groups if groups else _update
            update(kernel, a, b, c)
    return builder.get()


def _update(kernel: Microkernel, a: Expr, b: Expr, c: Expr) -> None:
    """The loops over rows, columns and K."""
    with I.grid(*c.shape, a.shape[-1]) as (i, j, step), I.sblock("update"):
        vi, vj, vk = I.axis.remap("SSR", [i, j, step])
        weight = b[vk // kernel.kr, vj, vk % kernel.kr] if kernel.kr > 1 else b[vk, vj]
        product = cast(kernel.acc_dtype, a[vi, vk]) * cast(kernel.acc_dtype, weight)
        I.buffer_store(c, c[vi, vj] + product, [vi, vj])


def _update_of_groups(kernel: Microkernel, a: Expr, b: Expr, c: Expr) -> None:
    """The loops over rows, columns, groups of K and their elements."""
    _, groups, kr = a.shape
    with I.grid(*c.shape, groups, kr) as (i, j, group, step), I.sblock("update"):
        vi, vj, vg, vs = I.axis.remap("SSRR", [i, j, group, step])
        x, y = cast(kernel.acc_dtype, a[vi, vg, vs]), cast(kernel.acc_dtype, b[vg, vj, vs])
        I.buffer_store(c, c[vi, vj] + x * y, [vi, vj])


def _implementation(
    kernel: Microkernel, rows: int, columns: int, k: int, groups: bool
) -> tirx.PrimFunc:
    """The microkernel on strided operands, accumulating into C."""
    lanes, kr = kernel.lanes, kernel.kr
    vectors = columns // lanes

    def load_a(a: Expr, i: int, step: Index) -> Expr:
        indices = [i, step, ramp(0, kr)] if groups else [i, ramp(step * kr, kr)]
        return kernel.spread(operand_bits(a[tuple(indices)]))

    def load_b(b: Expr, j: int, step: Index) -> Expr:
        if kr == 1:
            return operand_bits(b[step, ramp(j * lanes, lanes)])
        # The groups of kr lie side by side: one vector runs over `lanes` of them.
        return operand_bits(b[step, j * lanes, ramp(0, lanes * kr)])

    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("implementation")
        a, b, c = _tile_buffers(kernel, rows, columns, k, groups, strided=True)
        with I.sblock("root"):
            _regions(a, b, c)
            # Buffers allocated in the root block are dropped by tensorize, hence another block.
            with I.sblock("body"):
                _regions(a, b, c)
                tile = kernel.emit(
                    rows,
                    vectors,
                    (k // kr,),
                    lambda i, ks: load_a(a, i, ks[0]),
                    lambda j, ks: load_b(b, j, ks[0]),
                    lambda i, j: c[i, ramp(j * lanes, lanes)],
                )
                for i in range(rows):
                    for j in range(vectors):
                        I.buffer_store(c, tile.value(i, j), [i, ramp(j * lanes, lanes)])
    return builder.get()


def _tile_buffers(
    kernel: Microkernel, rows: int, columns: int, k: int, groups: bool, strided: bool
) -> tuple[Expr, Expr, Expr]:
    """Parameters A, B and C of a tile; only the outermost dimension of each is strided."""

    def parameter(name: str, shape: tuple[int, ...], dtype: str) -> Expr:
        handle = I.arg(name.lower(), I.handle())
        if not strided:
            return I.match_buffer(handle, shape, dtype, offset_factor=1)
        outermost = tirx.Var(f"stride_{name.lower()}", "int32")
        strides: list[Index] = [outermost, *shape[2:], 1]
        return I.match_buffer(handle, shape, dtype, strides=strides, offset_factor=1)

    kr = kernel.kr
    return (
        parameter("A", (rows, k // kr, kr) if groups else (rows, k), kernel.a_dtype),
        parameter("B", (k // kr, columns, kr) if kr > 1 else (k, columns), kernel.b_dtype),
        parameter("C", (rows, columns), kernel.acc_dtype),
    )


def _regions(a: Expr, b: Expr, c: Expr) -> None:
    """Declares that the whole of A, B and C is read, and the whole of C written."""

    def whole(buffer: Expr) -> Expr:
        return buffer[tuple(slice(0, extent) for extent in buffer.shape)]

    I.reads(whole(c), whole(a), whole(b))
    I.writes(whole(c))
