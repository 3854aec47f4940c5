"""Microkernels of AMX: tiles of int8, bf16 and fp16."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast as typed

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.amx import tile_shapes
from microkernels.amx.permission import emit_permission_check
from microkernels.amx.tile_shapes import FIRST_A, ROWS, accumulator, b_register, emit_tile
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import isa_named
from microkernels.microkernel import Microkernel
from microkernels.registry import register_microkernel
from microkernels.tile import (
    Address,
    Between,
    Columns,
    LoadA,
    LoadB,
    MultiplyAdd,
    Place,
    Start,
    Tile,
)
from microkernels.vector.expressions import Expr, Index, cast, lanes_of, ramp, reinterpret, shuffle

from .bf16 import DOT_LLVM_IR, dot_by_dpbf16
from .bf16 import TYPES as BF16
from .int8 import dot_by_vnni

# AMX microkernels: accumulators stay in tile registers and are stored after the last step of K.
#
#     for each 64 bytes of K:  A0 B0 A0*B0  B1 A0*B1  A1 A1*B0 A1*B1      one load for a product
#
# Layout "2x2" is a block of 32x32: 8 loads of A and B for 8 products. Layout "1x4" is a block of up
# to 16 rows and 64 columns. Rows of A may be any distance apart; the distance is the load's stride.
# B is packed as for VNNI; a tile holds 16 steps of that packing. The caller loads the configuration
# (`configure`) that fits a block's rows before it emits the block, and releases the tiles at the
# end of the task. The epilogue reads the accumulators from memory, where they are in L1.


DEPTH = 16  # steps of kr in the 64 bytes of a tile's row
_BLOCKS = {"2x2": (32, 32), "1x4": (16, 64)}


@dataclass(frozen=True, kw_only=True)
class AmxMicrokernel(Microkernel):
    """A microkernel whose accumulators are tiles.

    `multiply_add` is that of vectors of the same types; it sums rows and columns.

    Attributes
    ----------
    layout : str
        "2x2" or "1x4"; see `amx.tile_shapes`.
    product : str
        The instruction that multiplies tiles, such as "tdpbusd".
    """

    layout: str
    product: str
    depth: int = DEPTH

    def a_operand(self, buffer: Expr, index: Sequence[Index], pitch: int) -> Address:
        """64 bytes of K of up to 16 rows, `pitch` elements apart."""
        return _address(buffer, index, pitch)

    def b_operand(self, buffer: Expr, start: Index, pitch: int) -> Address:
        """16 columns of 16 steps of K, `pitch` elements apart."""
        return _address(buffer, [start], pitch)

    def admit(self) -> None:
        """Emits the check that Linux lets the process use tiles."""
        emit_permission_check()

    def configure(self, rows: int, columns: int | None = None) -> None:
        """Emits the configuration for `rows` rows and `columns` columns, by default nr."""
        columns = self.nr if columns is None else columns
        self.check(rows, -(-columns // self.lanes))
        tile_shapes.emit_configure(self.layout, rows, columns)

    def release(self) -> None:
        """Emits the release of the tiles; afterwards the thread has no tile state."""
        emit_tile("tilerelease")

    def emit(
        self,
        rows: int,
        vectors: int,
        reduction: Sequence[Index],
        load_a: LoadA,
        load_b: LoadB,
        init: Start | None = None,
        into: Place | None = None,
        resume: bool = False,
        peel: bool = False,
        between: Between | None = None,
        columns: Columns | None = None,
    ) -> Tile:
        """Emits one block; see `Microkernel.emit`.

        Its accumulators are stored at `into`; without it, in a buffer that the block allocates,
        which is slow. `init` is called with a variable for the row.
        """
        self.check(rows, vectors)
        if into is None:
            shape = (rows, vectors * self.lanes)
            into = Place(I.sblock_alloc_buffer(shape, self.acc_dtype, align=64))
        row_tiles = range(-(-rows // ROWS))
        column_tiles = range(vectors)
        tiles = [(i, j, accumulator(self.layout, i, j)) for i in row_tiles for j in column_tiles]
        if init is not None:
            with I.serial(rows) as row:
                for j in column_tiles:
                    self._put(into, row, j, init(row, j))
        alike: list[Address] = []
        if columns is not None:
            alike = [self._alike(into, j, columns(j)) for j in column_tiles]
        for i, j, number in tiles:
            if alike:
                emit_tile("tileloadd64", number, *_pointer(alike[j]))
            elif init is None and not resume:
                emit_tile("tilezero", number)
            else:
                emit_tile("tileloadd64", number, *self._stored(into, i, j))
        with contextlib.ExitStack() as stack:
            stack.enter_context(llvm_functions(self.llvm_ir))  # for `narrow`
            *outer, steps = reduction
            loops = [stack.enter_context(I.serial(extent)) for extent in outer]
            count = steps // DEPTH if isinstance(steps, int) else I.floordiv(steps, DEPTH)

            def multiply(number: Index) -> None:
                at = [*loops, number * DEPTH]
                for product, (i, j, sums) in enumerate(tiles):
                    if between is not None:
                        between(number, product, len(tiles))
                    if j == 0:
                        _load(FIRST_A + i, load_a(ROWS * i, at))
                    b = b_register(self.layout, j, vectors)
                    if i == 0:
                        _load(b, load_b(j, at))
                    emit_tile(self.product, sums, FIRST_A + i, b)

            if not peel or count > 1:
                with I.serial(count - 1 if peel else count) as block:
                    multiply(block)
            if peel:
                multiply(count - 1)
        for i, j, number in tiles:
            emit_tile("tilestored64", number, *self._stored(into, i, j))
        return Tile(rows, vectors, self.lanes, place=into)

    def _stored(self, into: Place, i: int, j: int) -> tuple[Expr, Expr]:
        """Address and stride of an accumulator tile in memory."""
        index = into.index(ROWS * i, self.lanes * j)
        return _pointer(_address(into.buffer, index, into.pitch or int(into.buffer.shape[-1])))

    def _alike(self, into: Place, j: int, value: Expr | Address) -> Address:
        """Address, with a stride of 0, from which a tile loads one row 16 times."""
        if isinstance(value, Address):
            return Address(value.pointer, 0)
        self._put(into, 0, j, value)
        return Address(I.address_of(into.buffer[tuple(into.index(0, self.lanes * j))]), 0)

    def _put(self, into: Place, row: Index, j: int, value: Expr) -> None:
        *leading, column = into.index(row, j * self.lanes)
        bits = reinterpret(str(into.buffer.dtype), value)
        I.buffer_store(into.buffer, bits, [*leading, ramp(column, self.lanes)])


def _address(buffer: Expr, index: Sequence[Index], pitch: int) -> Address:
    return Address(I.address_of(buffer[tuple(index)]), pitch * DataType(buffer.dtype).itemsize)


def _load(tile: int, operand: Expr | Address) -> None:
    """Loads a tile of an operand; a passing operand does not evict other data from L1."""
    passing = typed(Address, operand).passing
    emit_tile("tileloaddt164" if passing else "tileloadd64", tile, *_pointer(operand))


def _pointer(operand: Expr | Address) -> tuple[Expr, Expr]:
    address = typed(Address, operand)
    return address.pointer, tirx.const(address.stride, "int64")


def register_amx_blocks(
    types: tuple[str, str, str, str],
    product: str,
    multiply_add: MultiplyAdd,
    llvm_ir: str = "",
    isa_name: str = "amx",
) -> None:
    """Registers the blocks of one pair of types, given as for `register_microkernels`."""
    isa, kr = isa_named(isa_name), 4 // DataType(types[1]).itemsize
    for layout, (mr, nr) in _BLOCKS.items():
        names, tile = (f"amx_{types[0]}_{mr}x{nr}", isa.name), (mr, nr, kr, isa.f32_lanes)
        made = *names, *types[1:], *tile, multiply_add, llvm_ir
        register_microkernel(AmxMicrokernel(*made, layout=layout, product=product))


_DTYPES = {"u": "uint8", "s": "int8"}

for a, b in itertools.product(_DTYPES, repeat=2):
    types, dot = (_DTYPES[a], _DTYPES[b], "int32"), dot_by_vnni("llvm.x86.avx512.vpdpbusd.512")
    register_amx_blocks((f"{a}8{b}8s32", *types), f"tdpb{a}{b}d", dot)

register_amx_blocks(BF16, "tdpbf16ps", dot_by_dpbf16, DOT_LLVM_IR)


def _dot_by_widening(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """Two f32 products a lane, of the even and of the odd numbers of the pairs."""
    for parity in range(2):
        lanes = range(parity, 2 * lanes_of(accumulator), 2)
        x, y = (cast("float32", shuffle([pairs], lanes)) for pairs in (a, b))
        accumulator = accumulator + x * y
    return accumulator


FP16 = ("fp16", "float16", "float16", "float32")
register_amx_blocks(FP16, "tdpfp16ps", _dot_by_widening, isa_name="amx_fp16")
