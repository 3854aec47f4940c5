"""How a program is scheduled onto AMX tiles, step by step; the tests of the intrinsics run it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.amx.tensor_intrin import SCOPE, register_amx_intrins
from microkernels.kernels.amx_family import AmxMicrokernel
from microkernels.microkernel import Microkernel, all_microkernels
from microkernels.vector.expressions import cast, parameter

AMX_KERNELS = [kernel for kernel in all_microkernels() if isinstance(kernel, AmxMicrokernel)]


def products(kernel: Microkernel, m: int, columns: list[int], k: int) -> tirx.PrimFunc:
    """[m, k] times weights [k, n], one for every n of `columns`, whose groups of kr lie together.

    The results are the columns of one matrix, as parameters of their own: views with its pitch.
    """
    kr, acc = kernel.kr, kernel.acc_dtype
    numbered = list(enumerate(columns))
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", "tirx.noalias": True})
        a = parameter("A", (m, k), kernel.a_dtype)
        weights = [parameter(f"B{x}", (k // kr, n, kr), kernel.b_dtype) for x, n in numbered]
        handles = [I.arg(f"c{x}", I.handle()) for x, _ in numbered]
        strides = [sum(columns), 1]
        results = [
            IRBuilder.name(
                f"C{x}", I.match_buffer(handles[x], (m, n), acc, strides=strides, align=4)
            )
            for x, n in numbered
        ]
        for x, n in numbered:
            b, c = weights[x], IRBuilder.name(f"C{x}", results[x])
            with I.grid(m, n, k) as (i, j, step), I.sblock(f"C{x}"):
                vi, vj, vk = I.axis.remap("SSR", [i, j, step])
                weight = b[vk // kr, vj, vk % kr]
                I.reads(a[vi, vk], weight)
                I.writes(c[vi, vj])
                with I.init():
                    I.buffer_store(c, tirx.const(0, acc), [vi, vj])
                product = cast(acc, a[vi, vk]) * cast(acc, weight)
                I.buffer_store(c, c[vi, vj] + product, [vi, vj])
    return builder.get()


@dataclass(frozen=True)
class Product:
    """A matmul in a schedule, cut into blocks; what is left to do is to tensorize it."""

    kernel: Microkernel
    rows: int
    columns: int
    block: s_tir.schedule.SBlockRV
    write_back: s_tir.schedule.SBlockRV
    loops: list[s_tir.schedule.LoopRV]
    """Over blocks of rows, over blocks of columns, over products, and over rows in a block."""

    def tensorize(self, schedule: s_tir.Schedule) -> None:
        """Replaces init, multiply and store; the parallel loops must be parallel by now."""
        _, _, steps, rows = self.loops
        # Before this step the reduction is one block; a parallel loop around two is refused.
        init = schedule.decompose_reduction(self.block, steps)
        names = register_amx_intrins(self.kernel, self.rows, self.columns)
        schedule.tensorize(schedule.get_loops(init)[-2], names.init)
        schedule.tensorize(schedule.get_loops(self.write_back)[-2], names.store)
        schedule.tensorize(rows, names.multiply)


def blocked(
    schedule: s_tir.Schedule, name: str, kernel: Microkernel, rows: int, columns: int
) -> Product:
    """Cuts the matmul of block `name` into blocks of rows x columns and products of 64 bytes of K.

    The extents must be multiples of these.
    """
    block = schedule.get_sblock(name)
    i, j, k = schedule.get_loops(block)
    outer_i, inner_i = schedule.split(i, [None, rows])
    outer_j, inner_j = schedule.split(j, [None, columns])
    steps, inner_k = schedule.split(k, [None, 16 * kernel.kr])
    schedule.reorder(outer_i, outer_j, steps, inner_i, inner_j, inner_k)
    # The accumulators of one block, which are zeroed, added to and stored inside `outer_j`.
    write_back = schedule.cache_write(block, 0, SCOPE)
    schedule.reverse_compute_at(write_back, outer_j, preserve_unit_loops=True)
    return Product(kernel, rows, columns, block, write_back, [outer_i, outer_j, steps, inner_i])


def matmul_schedule(
    kernel: Microkernel, m: int, n: int, k: int, rows: int, columns: int, parallel: bool = True
) -> s_tir.Schedule:
    """One matmul on tiles; `configure_tiles` is all that it lacks."""
    schedule = s_tir.Schedule(products(kernel, m, [n], k))
    product = blocked(schedule, "C0", kernel, rows, columns)
    if parallel:
        schedule.parallel(product.loops[0])
    product.tensorize(schedule)
    return schedule


def side_by_side_schedule(
    kernel: Microkernel, m: int, k: int, sizes: list[tuple[int, int, int]]
) -> s_tir.Schedule:
    """Products that share their rows, and so their tasks: (n, rows, columns) of each.

    This is how a matmul gets a tail of columns: as a second product with smaller blocks.
    """
    schedule = s_tir.Schedule(products(kernel, m, [n for n, _, _ in sizes], k))
    parts = [
        blocked(schedule, f"C{number}", kernel, rows, columns)
        for number, (_, rows, columns) in enumerate(sizes)
    ]
    schedule.parallel(schedule.merge(*(part.loops[0] for part in parts)))
    for part in parts:
        part.tensorize(schedule)
    return schedule


def in_groups(kernel: Microkernel, weight: np.ndarray) -> np.ndarray:
    """[K, N] as [K / kr, N, kr]."""
    k, n = weight.shape
    return np.ascontiguousarray(weight.reshape(k // kernel.kr, kernel.kr, n).transpose(0, 2, 1))


def as_tensor(values: np.ndarray, dtype: str) -> tvm.runtime.Tensor:
    """An array as TVM's; bfloat16 comes as the uint16 that stores it."""
    return tvm.runtime.empty(values.shape, dtype).copyfrom(values)
