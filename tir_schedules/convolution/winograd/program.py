"""The stages of the template "conv2d_winograd", and how threads share them.

    for each block of tiles
        V = x transformed                               [36][tiles][C]
        for each panel of output channels
            M = 36 products of V and the weight         [36][tiles][panel]
            out = M transformed back, epilogue

V and M are parts of two flat buffers that exist once for a call. A team of threads shares a V, with
a barrier after the transform; every thread has an M of its own. A team of one needs no barrier.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Address, Microkernel
from microkernels.vector.expressions import Expr, bind, ramp
from microkernels.vector.prefetch import prefetch
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block, task_loop
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.tile_loops import TileLoops

from .config import LINE, WinogradConfig, odd_lines, panel_count
from .control import either, part_of
from .input_transform import InputTransform
from .output_transform import OutputTransform
from .problem import WinogradProblem
from .transforms import PRODUCTS


@dataclass(frozen=True)
class WinogradProgram:
    """A region and what it works on; `emit` puts it into the PrimFunc under construction.

    Attributes
    ----------
    problem : WinogradProblem
        The region in tiles.
    config : WinogradConfig
        Its numbers.
    kernel : Microkernel
        Of the products.
    x, weight, out : Buffer
        Parameters; the weight is packed.
    epilogue : Epilogue
        With rows counted over all pixels.
    """

    problem: WinogradProblem
    config: WinogradConfig
    kernel: Microkernel
    x: Expr
    weight: Expr
    out: Expr
    epilogue: Epilogue

    @cached_property
    def inputs(self) -> InputTransform:
        """Stage 1, with its buffer."""
        pitches = self._pitches(self.problem.geometry.channels)
        size = self.config.teams(self.problem) * PRODUCTS * pitches[0]
        v = I.sblock_alloc_buffer((size,), "float32", align=64)
        return InputTransform(self.problem, self.x, self.kernel.lanes, v, pitches)

    @cached_property
    def outputs(self) -> OutputTransform:
        """Stage 3, with its buffer."""
        lanes = self.kernel.lanes
        pitches = self._pitches(self.config.vectors * lanes)

        def with_buffer(m: Expr) -> OutputTransform:
            return OutputTransform(self.problem, self.out, self.epilogue, lanes, m, pitches)

        size = with_buffer(self.x).size * self.config.teams(self.problem) * self._members
        return with_buffer(I.sblock_alloc_buffer((size,), "float32", align=64))

    @property
    def _members(self) -> int:
        return self.config.threads_panels

    def _pitches(self, elements: int) -> tuple[int, int]:
        """Elements from one matrix, and from one tile, to the next; a tile has so many."""
        tile = odd_lines(elements)
        return odd_lines(self.config.blocks(self.problem)[0][0].size * tile), tile

    def emit(self) -> None:
        """All stages."""
        teams, members = self.config.teams(self.problem), self._members
        _, each = self.config.blocks(self.problem)
        inputs, outputs = self.inputs, self.outputs  # allocated here
        team_size = PRODUCTS * inputs.pitches[0]

        def transform(team: Expr, member: Expr, number: Expr) -> None:
            first, tiles = self._tiles(number)
            inputs.emit(bind(team * team_size), first, tiles, members, member)

        def multiply(team: Expr, member: Expr, number: Expr) -> None:
            m_start = bind((member * teams + team) * outputs.size)
            self._panels(bind(team * team_size), m_start, member, number)

        def stage(step: Expr, *bodies: Callable[[Expr, Expr, Expr], None]) -> None:
            """A parallel region over all threads."""
            with task_loop(teams * members) as task:
                team, member = I.floormod(task, teams), I.floordiv(task, teams)
                with I.serial(1 if members > 1 else each) as own, opaque_block("block"):
                    number = bind((step + own) * teams + team)
                    with self._if_any(number):
                        for body in bodies:
                            body(team, member, number)

        if members == 1:
            stage(tirx.const(0, "int32"), transform, multiply)
            return
        with I.serial(each) as step:
            stage(step, transform)
            stage(step, multiply)

    def _if_any(self, number: Expr) -> AbstractContextManager[object]:
        """The scope of code for a block, which the last step of a team may lack."""
        blocks, each = self.config.blocks(self.problem)
        count = sum(group.count for group in blocks)
        scope = contextlib.ExitStack()
        if count < self.config.teams(self.problem) * each:
            scope.enter_context(I.If(number < count))
            scope.enter_context(I.Then())
        return scope

    def _tiles(self, number: Expr) -> tuple[Expr, Expr]:
        """First tile and tiles of a block."""
        return _piece(self.config.blocks(self.problem)[0], number)

    def _panels(self, v: Expr, m: Expr, member: Expr, number: Expr) -> None:
        """Stages 2 and 3 for a member's share of the panels; `v` and `m` are starts."""
        blocks, _ = self.config.blocks(self.problem)
        panels = self.config.panels(self.problem, self.kernel)
        first, tiles = self._tiles(number)
        share = part_of(panel_count(panels), self._members, member)
        with I.serial(*share) as panel, opaque_block("panel"):
            start, width = _piece(panels, panel)

            def product(size: int, vectors: int) -> None:
                self._multiply(v, m, size, start, vectors)

            _for_size(
                blocks,
                number,
                lambda size: _for_size(panels, panel, lambda vectors: product(size, vectors)),
            )
            self.outputs.emit(m, first, tiles, start, width)

    def _multiply(self, v: Expr, m: Expr, tiles: int, panel: Expr, width: int) -> None:
        """Stage 2: the 36 products of a panel."""
        kernel, lanes = self.kernel, self.kernel.lanes
        k = self.problem.geometry.channels
        panel_start = panel * (lanes * PRODUCTS * k)
        with I.serial(PRODUCTS) as number, opaque_block("product"):
            start = bind(panel_start + number * (k * width * lanes))
            v_start = bind(v + number * self.inputs.pitches[0])
            m_start = bind(m + number * self.outputs.pitches[0])

            def load_a(row: Expr, step: Expr | int) -> Expr | Address:
                pitch = self.inputs.pitches[1]
                return kernel.a_operand(self.inputs.v, [v_start + row * pitch + step], pitch)

            def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
                return kernel.b_operand(
                    self.weight, start + (step * width + j) * lanes, width * lanes
                )

            def store(row: Expr, vector: Expr, value: Expr, _last: bool) -> None:
                at = m_start + row * self.outputs.pitches[1] + (vector - panel) * lanes
                I.buffer_store(self.outputs.m, value, [ramp(at, lanes)])

            def fetch(_panel: Expr, line: Expr | int) -> None:
                prefetch(self.weight[start + (k * width + line) * lanes])

            TileLoops(
                replace(self.config.plan(self.problem), m=tiles, m_block=tiles),
                load_a,
                load_b,
                store,
                fetch=fetch if lanes == LINE else None,
            ).emit(tirx.const(0, "int32"), tiles, panel, width)


def _piece(groups: Sequence[Group], index: Expr) -> tuple[Expr, Expr]:
    """Start and size of the piece number `index`; the larger pieces come first."""
    larger = groups[0]
    start, size = index * larger.size, tirx.const(larger.size, "int32")
    if len(groups) > 1:
        smaller = groups[1]
        start = start - tirx.Max(index - larger.count, 0) * (larger.size - smaller.size)
        size = I.Select(index < larger.count, size, tirx.const(smaller.size, "int32"))
    return bind(start), bind(size)


def _for_size(groups: Sequence[Group], index: Expr, body: Callable[[int], None]) -> None:
    """Code for the size of the piece number `index`; one branch for each."""
    if len(groups) == 1:
        body(groups[0].size)
        return
    either([index < groups[0].count], lambda: body(groups[0].size), lambda: body(groups[1].size))
