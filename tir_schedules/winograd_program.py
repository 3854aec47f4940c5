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

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Address, Microkernel
from microkernels.prefetch import prefetch
from microkernels.vectors import Expr, bind, ramp

from .blocking import balanced, shares
from .epilogue import Epilogue
from .tile_loops import TileLoops, for_groups, for_share
from .winograd_config import LINE, WinogradConfig, odd_lines
from .winograd_input import InputTransform
from .winograd_output import OutputTransform
from .winograd_problem import WinogradProblem
from .winograd_transforms import PRODUCTS


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

        def transform(team: Expr, member: Expr, first: Expr, tiles: int) -> None:
            inputs.emit(bind(team * team_size), first, tiles, members, member)

        def multiply(team: Expr, member: Expr, first: Expr, tiles: int) -> None:
            v_start = bind(team * team_size)
            m_start = bind((member * teams + team) * outputs.size)
            self._panels(v_start, m_start, member, first, tiles)

        def stage(step: Expr, *bodies: Callable[[Expr, Expr, Expr, int], None]) -> None:
            """A parallel region over all threads."""
            with _parallel(teams * members) as task, I.sblock("task"):
                I.reads()
                I.writes()
                team, member = I.floormod(task, teams), I.floordiv(task, teams)

                def block(first: Expr, tiles: int) -> None:
                    first = bind(first)
                    for body in bodies:
                        body(team, member, first, tiles)

                if members > 1:
                    self._block(step, team, block)
                    return
                with I.serial(each) as own, I.sblock("block"):
                    I.reads()
                    I.writes()
                    self._block(own, team, block)

        if members == 1:
            stage(tirx.const(0, "int32"), transform, multiply)
            return
        with I.serial(each) as step:
            stage(step, transform)
            stage(step, multiply)

    def _block(self, step: Expr, team: Expr, body: Callable[[Expr, int], None]) -> None:
        """Runs `body(first tile, tiles)` for a team's block number `step`, if it has so many."""
        blocks, each = self.config.blocks(self.problem)
        number, teams = (
            step * self.config.teams(self.problem) + team,
            self.config.teams(self.problem),
        )
        count = sum(group.count for group in blocks)
        if count == teams * each:
            for_share(blocks, number, body)
            return
        with I.If(number < count), I.Then():
            for_share(blocks, number, body)

    def _panels(self, v: Expr, m: Expr, member: Expr, first: Expr, tiles: int) -> None:
        """Stages 2 and 3 for a member's share of the panels; `v` and `m` are starts."""
        n_vectors = math.ceil(self.problem.geometry.out_channels / self.kernel.lanes)
        parts = shares(n_vectors, min(self._members, n_vectors))

        def panel(vector: Expr, width: int) -> None:
            vector = bind(vector)
            self._multiply(v, m, tiles, vector, width)
            self.outputs.emit(m, first, tiles, vector, width)

        def part(start: Expr, vectors: int) -> None:
            groups = balanced(vectors, self.config.vectors)
            for_groups(groups, lambda vector, width: panel(start + vector, width))

        if self._members <= n_vectors:
            for_share(parts, member, part)
            return
        with I.If(member < n_vectors), I.Then():
            for_share(parts, member, part)

    def _multiply(self, v: Expr, m: Expr, tiles: int, panel: Expr, width: int) -> None:
        """Stage 2: the 36 products of a panel."""
        kernel, lanes = self.kernel, self.kernel.lanes
        k = self.problem.geometry.channels
        panel_start = panel * (lanes * PRODUCTS * k)
        with I.serial(PRODUCTS) as number, I.sblock("product"):
            I.reads()
            I.writes()
            start = bind(panel_start + number * (k * width * lanes))
            v_start = bind(v + number * self.inputs.pitches[0])
            m_start = bind(m + number * self.outputs.pitches[0])

            def load_a(row: Expr, step: Expr) -> Expr | Address:
                pitch = self.inputs.pitches[1]
                return kernel.a_operand(self.inputs.v, [v_start + row * pitch + step], pitch)

            def load_b(_panel: Expr, _width: int, step: Expr, j: int) -> Expr | Address:
                return kernel.b_operand(
                    self.weight, start + (step * width + j) * lanes, width * lanes
                )

            def store(row: Expr, vector: Expr, value: Expr, _last: bool) -> None:
                at = m_start + row * self.outputs.pitches[1] + (vector - panel) * lanes
                I.buffer_store(self.outputs.m, value, [ramp(at, lanes)])

            def fetch(_panel: Expr, line: Expr) -> None:
                prefetch(self.weight[start + (k * width + line) * lanes])

            TileLoops(
                kernel,
                kernel.steps(k),
                self.config.rows,
                self.config.vectors,
                tiles,
                self.config.k_block,
                load_a,
                load_b,
                store,
                fetch=fetch if lanes == LINE else None,
            ).emit(tirx.const(0, "int32"), tiles, panel, width)


def _parallel(tasks: int) -> AbstractContextManager[Expr]:
    """A loop over tasks, one for each thread."""
    loop: AbstractContextManager[Expr] = I.parallel(tasks) if tasks > 1 else I.serial(1)
    return loop
