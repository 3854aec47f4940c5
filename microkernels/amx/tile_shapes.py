"""AMX tile configurations: the shapes of the eight tile registers, loaded once for each task.

    layout "2x2"  accumulators tmm0-3 (row tile i, column tile j: 2i + j), A tmm4-5, B tmm6-7
    layout "1x4"  accumulators tmm0-3, A tmm4, B tmm5-7

A configuration also fits blocks that leave some of its tiles unused. Loading a configuration zeroes
all tiles and takes some 200 cycles. So a task finishes its full blocks before it loads the
configuration of its tail.
The 64 bytes are the constant data of an imported LLVM function: a buffer of TIR would become a heap
allocation. Intel, "Architecture Instruction Set Extensions Programming Reference" (319433), 3.2.
"""

from __future__ import annotations

import struct

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions

ROWS = 16  # of a tile
ROW_BYTES = 64
LAYOUTS = {"2x2": (2, 2), "1x4": (1, 4)}  # row tiles, column tiles
FIRST_A = 4
_PALETTE = 1
_WORD = 4  # bytes of an accumulator, and of the elements of K that lie together


def accumulator(layout: str, i: int, j: int) -> int:
    """The tile register of row tile i, column tile j."""
    return i * LAYOUTS[layout][1] + j


def b_register(layout: str, j: int, column_tiles: int) -> int:
    """The tile register for column tile j of B; the last tile, maybe narrower, has its own one.

    The layout "1x4" has three registers for four tiles: the other tiles take turns.
    """
    if layout == "2x2":
        return 6 + j
    return 7 if j == column_tiles - 1 else 5 + j % 2


def configuration(layout: str, rows: int, columns: int) -> bytes:
    """The 64 bytes that `ldtilecfg` reads.

    Parameters
    ----------
    layout : str
        "2x2" or "1x4".
    rows, columns : int
        Size of the block; the last tile is cut if a size is no multiple of 16.
    """
    row_tiles, column_tiles = LAYOUTS[layout]
    heights = [max(1, min(ROWS, rows - ROWS * i)) for i in range(row_tiles)]
    widths = [max(1, min(ROWS, columns - ROWS * j)) for j in range(column_tiles)]
    used = -(-columns // ROWS)
    shapes = [(ROWS, ROW_BYTES)] * 8
    for i, height in enumerate(heights):
        shapes[FIRST_A + i] = (height, ROW_BYTES)
        for j, width in enumerate(widths):
            shapes[accumulator(layout, i, j)] = (height, _WORD * width)
    for j in range(used):
        shapes[b_register(layout, j, used)] = (ROWS, _WORD * widths[j])
    bytes_of_rows = [row_bytes for _, row_bytes in shapes]
    heights_of_all = [height for height, _ in shapes]
    return struct.pack("<2B14x8H16x8B8x", _PALETTE, 0, *bytes_of_rows, *heights_of_all)


def emit_configure(layout: str, rows: int, columns: int) -> None:
    """Emits `ldtilecfg`: all tiles are zero afterwards."""
    name = f"tvm_hybrid_amx_configure_{layout}_{rows}x{columns}"
    data = "".join(f"\\{byte:02x}" for byte in configuration(layout, rows, columns))
    text = f"""
@{name}_data = linkonce_odr hidden unnamed_addr constant [64 x i8] c"{data}", align 64
define linkonce_odr hidden i32 @{name}() #0 {{
  call void @llvm.x86.ldtilecfg(ptr @{name}_data)
  ret i32 0
}}
declare void @llvm.x86.ldtilecfg(ptr)
attributes #0 = {{ alwaysinline nounwind "target-features"="+amx-tile" }}
"""
    with llvm_functions(text):
        I.evaluate(I.call_extern("int32", name))


def emit_tile(instruction: str, *arguments: tirx.Expr | int) -> None:
    """Emits one tile instruction; numbers are tile registers."""
    values = [tirx.const(x, "uint8") if isinstance(x, int) else x for x in arguments]
    I.evaluate(I.call_llvm_intrin("void", f"llvm.x86.{instruction}", *values))
