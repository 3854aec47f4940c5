"""The second face of AMX microkernels: three TensorIntrins, for `sch.tensorize`.

A block of a matmul stays in tile registers from its first product to its last, and takes three
intrinsics. One product multiplies 64 bytes of K, which are 16 * kr elements:

    init      S[i, j] = 0
    multiply  S[i, j] += acc(A[i, k]) * acc(B[k // kr, j, k % kr])
    store     C[i, j] = S[i, j]

S is a buffer in the scope "amx.tmm", made by `cache_write`: it stands for the accumulator tiles,
and no code touches it once all three are in place. B is what `transform_layout` makes of a weight
with the index map (k, j) -> (k // kr, j, k % kr). Rows of A, B and C may lie any distance apart.
A tail of rows or columns is a smaller block, with a tile configuration of its own:
`amx.configure_tiles.configure_tiles` finds the blocks of a finished schedule and loads what they
need. K must come in whole products (`sch.pad_einsum` pads it with zeros). For blocks of one row or
one column, `reverse_compute_at` has to keep loops of one turn: `preserve_unit_loops=True`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder

from microkernels.errors import IsaError
from microkernels.kernels.amx_family import AmxMicrokernel
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, cast

from .tile_shapes import FIRST_A, ROWS, accumulator, b_register, emit_tile

SCOPE = "amx.tmm"
# Marks a block of tile instructions: layout, rows and columns of the accumulators.
BLOCK_ATTRIBUTE = "tvm_hybrid.amx_block"


@dataclass(frozen=True)
class AmxIntrins:
    """Names for `sch.tensorize`."""

    init: str
    multiply: str
    store: str


def register_amx_intrins(kernel: Microkernel, rows: int, columns: int) -> AmxIntrins:
    """Registers the three intrinsics of one size of block with TVM.

    Parameters
    ----------
    kernel : Microkernel
        One of AMX, such as "amx_u8s8s32_32x32": its types and its layout of tiles.
    rows, columns : int
        Size of the block: at most mr x nr, whole tiles or not.

    Returns
    -------
    AmxIntrins
        Their names; registering the same block again is harmless.

    Raises
    ------
    IsaError
        If the kernel has no tiles, or no such block.
    """
    if not isinstance(kernel, AmxMicrokernel):
        raise IsaError(
            f"{kernel.name} has no tile registers; "
            "`tensor_intrin.register_tensor_intrin` registers it"
        )
    if not (0 < rows <= kernel.mr and 0 < columns <= kernel.nr):
        raise IsaError(
            f"{kernel.name} has no {rows}x{columns} block; at most {kernel.mr} rows and "
            f"{kernel.nr} columns"
        )
    block = _Block(kernel, rows, columns)
    name = f"tvm_hybrid.{kernel.name}.{rows}x{columns}"
    names = AmxIntrins(f"{name}.init", f"{name}.multiply", f"{name}.store")
    TensorIntrin.register(names.init, block.init_meaning(), block.init_tiles(), override=True)
    TensorIntrin.register(
        names.multiply, block.multiply_meaning(), block.multiply_tiles(), override=True
    )
    TensorIntrin.register(names.store, block.store_meaning(), block.store_tiles(), override=True)
    return names


@dataclass(frozen=True)
class _Block:
    """One size of block: what its intrinsics mean, in scalar code, and their tile instructions."""

    kernel: AmxMicrokernel
    rows: int
    columns: int

    @property
    def steps(self) -> int:
        """Elements of K of one product."""
        return self.kernel.depth * self.kernel.kr

    @property
    def row_tiles(self) -> range:
        return range(-(-self.rows // ROWS))

    @property
    def column_tiles(self) -> range:
        return range(-(-self.columns // self.kernel.lanes))

    @property
    def accumulators(self) -> list[tuple[int, int, int]]:
        """Row tile, column tile and register of every accumulator."""
        layout = self.kernel.layout
        return [
            (i, j, accumulator(layout, i, j)) for i in self.row_tiles for j in self.column_tiles
        ]

    def init_meaning(self) -> tirx.PrimFunc:
        with IRBuilder() as builder, _function("init_meaning"):
            s = self._s()
            with _block([], [s]), _points(self.rows, self.columns) as (i, j):
                I.buffer_store(s, tirx.const(0, self.kernel.acc_dtype), [i, j])
        return builder.get()

    def init_tiles(self) -> tirx.PrimFunc:
        with IRBuilder() as builder, _function("init_tiles"), self._tiles([], [self._s()]):
            for _, _, register in self.accumulators:
                emit_tile("tilezero", register)
        return builder.get()

    def multiply_meaning(self) -> tirx.PrimFunc:
        kr, acc = self.kernel.kr, self.kernel.acc_dtype
        with IRBuilder() as builder, _function("multiply_meaning"):
            a, b, s = self._a(), self._b(), self._s()
            points = _points(self.rows, self.columns, self.steps)
            with _block([s, a, b], [s]), points as (i, j, k):
                product = cast(acc, a[i, k]) * cast(acc, b[k // kr, j, k % kr])
                I.buffer_store(s, s[i, j] + product, [i, j])
        return builder.get()

    def multiply_tiles(self) -> tirx.PrimFunc:
        kernel, layout = self.kernel, self.kernel.layout
        with IRBuilder() as builder, _function("multiply_tiles"):
            a, b, s = self._a(strided=True), self._b(strided=True), self._s()
            with self._tiles([s, a, b], [s]):
                for i in self.row_tiles:
                    emit_tile("tileloadd64", FIRST_A + i, *_rows(a, [ROWS * i, 0]))
                    for j in self.column_tiles:
                        register = b_register(layout, j, len(self.column_tiles))
                        if i == 0:
                            emit_tile("tileloadd64", register, *_rows(b, [0, kernel.lanes * j, 0]))
                        product = accumulator(layout, i, j)
                        emit_tile(kernel.product, product, FIRST_A + i, register)
        return builder.get()

    def store_meaning(self) -> tirx.PrimFunc:
        with IRBuilder() as builder, _function("store_meaning"):
            s, c = self._s(), self._c()
            with _block([s], [c]), _points(self.rows, self.columns) as (i, j):
                I.buffer_store(c, s[i, j], [i, j])
        return builder.get()

    def store_tiles(self) -> tirx.PrimFunc:
        with IRBuilder() as builder, _function("store_tiles"):
            s, c = self._s(), self._c(strided=True)
            with self._tiles([s], [c]):
                for i, j, register in self.accumulators:
                    index = [ROWS * i, self.kernel.lanes * j]
                    emit_tile("tilestored64", register, *_rows(c, index))
        return builder.get()

    def _a(self, strided: bool = False) -> Expr:
        return _parameter("A", (self.rows, self.steps), self.kernel.a_dtype, strided)

    def _b(self, strided: bool = False) -> Expr:
        shape = (self.kernel.depth, self.columns, self.kernel.kr)
        return _parameter("B", shape, self.kernel.b_dtype, strided)

    def _c(self, strided: bool = False) -> Expr:
        return _parameter("C", (self.rows, self.columns), self.kernel.acc_dtype, strided)

    def _s(self) -> Expr:
        shape = (self.rows, self.columns)
        return _parameter("S", shape, self.kernel.acc_dtype, scope=SCOPE)

    @contextmanager
    def _tiles(self, reads: list[Expr], writes: list[Expr]) -> Iterator[None]:
        """The root block of an implementation, marked for `configure_tiles`."""
        with _block(reads, writes):
            mark = [self.kernel.layout, self.rows, self.columns]
            I.sblock_attr({BLOCK_ATTRIBUTE: mark})
            yield


@contextmanager
def _function(name: str) -> Iterator[None]:
    with I.prim_func(s_tir=True):
        I.func_name(name)
        yield


def _parameter(
    name: str, shape: tuple[int, ...], dtype: str, strided: bool = False, scope: str = "global"
) -> Expr:
    """A parameter; if strided, its outermost dimension has any pitch.

    Aligned to its elements only: tile instructions ask for no more, and it would be asked of
    whatever takes the parameter's place.
    """
    handle = I.arg(name.lower(), I.handle())
    strides = [tirx.Var(f"pitch_{name.lower()}", "int32"), *shape[2:], 1] if strided else None
    align = DataType(dtype).itemsize
    return I.match_buffer(
        handle, shape, dtype, strides=strides, scope=scope, align=align, offset_factor=1
    )


@contextmanager
def _block(reads: list[Expr], writes: list[Expr]) -> Iterator[None]:
    """The root block; it reads and writes the whole of these buffers."""

    def whole(buffer: Expr) -> Expr:
        return buffer[tuple(slice(0, extent) for extent in buffer.shape)]

    with I.sblock("root"):
        I.reads(*map(whole, reads))
        I.writes(*map(whole, writes))
        yield


@contextmanager
def _points(*extents: int) -> Iterator[list[Expr | int]]:
    """A block with one axis for every extent; the third is reduced.

    An extent of 1 has a loop but no axis: so it is with the program that `tensorize` compares.
    """
    with contextlib.ExitStack() as stack:
        loops = [stack.enter_context(I.serial(extent)) for extent in extents]
        stack.enter_context(I.sblock("point"))
        kinds = (I.axis.spatial, I.axis.spatial, I.axis.reduce)
        yield [
            axis(extent, loop) if extent > 1 else 0
            for axis, extent, loop in zip(kinds, extents, loops, strict=False)
        ]


def _rows(buffer: Expr, index: list[int]) -> tuple[Expr, Expr]:
    """Address of the first row of a tile, and the distance of its rows in bytes."""
    pitch = buffer.strides[0] * DataType(buffer.dtype).itemsize
    return I.address_of(buffer[tuple(index)]), cast("int64", pitch)
