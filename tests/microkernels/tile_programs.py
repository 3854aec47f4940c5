"""Programs of tile instructions, as `configure_tiles` finds them and as it should leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.amx.permission import emit_permission_check
from microkernels.amx.residency import Size
from microkernels.amx.tensor_intrin import BLOCK_ATTRIBUTE, SCOPE
from microkernels.amx.tile_shapes import emit_configure, emit_release, emit_tile
from microkernels.vector.expressions import Expr


@dataclass(frozen=True)
class TileProgram:
    """A program under construction; `check`, `configure` and `release` are what the pass adds."""

    configured: bool

    def check(self) -> None:
        if self.configured:
            emit_permission_check()

    def configure(self, layout: str, rows: int, columns: int) -> None:
        if self.configured:
            emit_configure(layout, rows, columns)

    def release(self) -> None:
        if self.configured:
            emit_release()

    def accumulators(self, *shape: int) -> Expr:
        """A buffer that stands for tiles."""
        return IRBuilder.name("s", I.sblock_alloc_buffer(shape, "int32", scope=SCOPE))

    def tiles(self, s: Expr, size: Size) -> None:
        """A block that multiplies into the accumulators `s`."""
        with self.touching(s, "multiply"):
            if not self.configured:
                I.sblock_attr({BLOCK_ATTRIBUTE: list(size)})
            emit_tile("tdpbusd", 0, 4, 6)

    @contextmanager
    def touching(self, s: Expr, name: str) -> Iterator[None]:
        """A block that reads and writes the whole of `s`."""
        with I.sblock(name):
            whole = s[tuple(slice(0, extent) for extent in s.shape)]
            I.reads(whole)
            I.writes(whole)
            I.match_buffer(whole, s.shape, "int32", scope=SCOPE, offset_factor=1)
            yield


def written(program: Callable[[TileProgram], None], configured: bool = False) -> tirx.PrimFunc:
    """The program as a function: before the pass, or as it is after it."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", "tirx.noalias": True})
        I.arg("out", I.buffer((4,), "int32"))
        with I.sblock("root"):
            program(TileProgram(configured))
    return builder.get()
