"""The stages of the template "conv2d_winograd", and how threads share them.

    for each block of tiles
        V = x transformed                               [products][tiles][C]
        for each panel of output channels
            M = products of V and the weight         [products][tiles][panel]
            out = M transformed back, epilogue

V and M are parts of two flat buffers that exist once for a call. A team of threads shares a V, with
a barrier after the transform; every thread has an M of its own. A team of one needs no barrier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import Expr, bind
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block, task_loop
from tir_schedules.core.loop_nest import (
    Bytes,
    Loop,
    LoopNest,
    Tiling,
    balance_of,
    nested,
    pieces,
    product_loops,
)
from tir_schedules.core.product_plan import Product
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.tile_loops import TileLoops

from .config import WinogradConfig, odd_lines, panel_count, winograd_cost
from .control import either, part_of
from .output_transform import InputTransform, OutputTransform
from .panel_product import Panel, PanelProduct
from .problem import WinogradProblem


class Block(NamedTuple):
    """Tiles that go through all stages together: the first, how many, and the block's number."""

    first: Expr
    tiles: Expr
    number: Expr


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
    dtype : str
        Of x.
    epilogue : Epilogue
        With rows counted over all pixels.
    """

    problem: WinogradProblem
    config: WinogradConfig
    kernel: Microkernel
    x: Expr
    dtype: str
    weight: Expr
    out: Expr
    epilogue: Epilogue

    @cached_property
    def inputs(self) -> InputTransform:
        """Stage 1, with its buffer."""
        algorithm, multiplied = self.problem.algorithm, self.multiplied
        lanes = self.kernel.lanes * multiplied.kr  # as many as are a whole vector
        channels = -(-self.problem.geometry.channels // lanes) * lanes
        pitches = self._pitches(channels, algorithm.bytes)
        size = self._teams * algorithm.products * pitches[0]
        v = I.sblock_alloc_buffer((size,), algorithm.element, align=64)
        return InputTransform(self.problem, self.x, self.dtype, lanes, v, pitches)

    @cached_property
    def outputs(self) -> OutputTransform:
        """Stage 3, with its buffer."""
        lanes = self.kernel.lanes
        pitches = self._pitches(self.config.vectors * lanes)

        def with_buffer(m: Expr) -> OutputTransform:
            return OutputTransform(self.problem, self.out, self.epilogue, lanes, m, pitches)

        size = with_buffer(self.x).size * self._teams * self._members
        return with_buffer(I.sblock_alloc_buffer((size,), self.problem.algorithm.total, align=64))

    @property
    def _members(self) -> int:
        return self.config.threads_panels

    @property
    def _teams(self) -> int:
        return self.config.teams(self.problem)

    @property
    def _most(self) -> int:
        """Tiles of the largest block."""
        return self.config.blocks(self.problem)[0][0].size

    @property
    def _each(self) -> Expr | int:
        """How many blocks a team takes at most."""
        return self.config.blocks(self.problem)[1]

    def _pitches(self, elements: int, item: int = 4) -> tuple[int, int]:
        """Elements from one matrix, and from one tile, to the next; a tile has so many."""
        tile = odd_lines(elements, item)
        return odd_lines(self._most * tile, item), tile

    @property
    def multiplied(self) -> Microkernel:
        """What multiplies."""
        return self.problem.algorithm.kernel(self.kernel)

    def emit(self) -> None:
        """All stages."""
        teams, members, each = self._teams, self._members, self._each
        inputs, outputs = self.inputs, self.outputs  # allocated here
        team_size = self.problem.algorithm.products * inputs.pitches[0]

        def transform(team: Expr, member: Expr, block: Block) -> None:
            inputs.emit(bind(team * team_size), block.first, block.tiles, members, member)

        def multiply(team: Expr, member: Expr, block: Block) -> None:
            m_start = bind((member * teams + team) * outputs.size)
            self._panels(bind(team * team_size), m_start, member, block)

        def stage(step: Expr, *bodies: Callable[[Expr, Expr, Block], None]) -> None:
            """A parallel region over all threads."""
            with task_loop(teams * members) as task:
                team, member = I.floormod(task, teams), I.floordiv(task, teams)
                with (
                    I.serial(1 if members > 1 else each) as own,
                    opaque_block("block"),
                    self._block(team, step + own) as block,
                ):
                    for body in bodies:
                        body(team, member, block)

        if members == 1:
            stage(tirx.const(0, "int32"), transform, multiply)
            return
        with I.serial(each) as step:
            stage(step, transform)
            stage(step, multiply)

    @contextmanager
    def _block(self, team: Expr, step: Expr) -> Iterator[Block]:
        """The scope of code for a team's block, which the last step may lack."""
        blocks, each = self.config.blocks(self.problem)
        number = bind(step * self._teams + team)
        count = sum(group.count for group in blocks)
        with ExitStack() as scope:
            if count < self._teams * each:
                scope.enter_context(I.If(number < count))
                scope.enter_context(I.Then())
            yield Block(*_piece(blocks, number), number)

    def _panels(self, v: Expr, m: Expr, member: Expr, block: Block) -> None:
        """Stages 2 and 3 for a member's share of the panels; `v` and `m` are starts."""
        panels = self.config.panels(self.problem, self.kernel)
        share = part_of(panel_count(panels), self._members, member)
        with I.serial(*share) as panel, opaque_block("panel"):
            start, width = _piece(panels, panel)

            self._products(block, panel, Panel(v, m, start))
            self.outputs.emit(m, block.first, block.tiles, start, width)

    def _products(self, block: Block, number: Expr, panel: Panel) -> None:
        """Stage 2, with code for each size of a block and each width of a panel."""
        blocks, _ = self.config.blocks(self.problem)
        panels = self.config.panels(self.problem, self.kernel)

        def of_size(tiles: int) -> None:
            for_size(panels, number, lambda width: self._multiply(panel.of(width), tiles))

        for_size(blocks, block.number, of_size)

    def _multiply(self, panel: Panel, tiles: int) -> None:
        """The products of a panel."""
        plan = replace(self.config.plan(self.problem), m=tiles, m_block=tiles)
        with I.serial(self.problem.algorithm.products) as number, opaque_block("product"):
            product = self._product(panel, number)
            TileLoops(
                plan, product.load_a, product.load_b, product.store, prefetch=product.prefetch
            ).emit(tirx.const(0, "int32"), tiles, panel.first, panel.width)

    def _product(self, panel: Panel, number: Expr) -> PanelProduct:
        """One of the products."""
        kernel = self.multiplied
        steps = kernel.steps(self.problem.geometry.channels)
        vector = steps * kernel.lanes * kernel.kr  # of a product's weight
        of_panel = panel.first * (vector * self.problem.algorithm.products)
        return PanelProduct(
            kernel=kernel,
            v=self.inputs.v,
            v_start=bind(panel.v + number * self.inputs.pitches[0]),
            v_pitch=self.inputs.pitches[1],
            weight=self.weight,
            w_start=bind(of_panel + number * (vector * panel.width)),
            m=self.outputs.m,
            m_start=bind(panel.m + number * self.outputs.pitches[0]),
            m_pitch=self.outputs.pitches[1],
            panel=panel,
            steps=steps,
        )


def _piece(groups: Sequence[Group], index: Expr) -> tuple[Expr, Expr]:
    """Start and size of the piece number `index`; the larger pieces come first."""
    larger = groups[0]
    start, size = index * larger.size, tirx.const(larger.size, "int32")
    if len(groups) > 1:
        smaller = groups[1]
        start = start - tirx.Max(index - larger.count, 0) * (larger.size - smaller.size)
        size = I.Select(index < larger.count, size, tirx.const(smaller.size, "int32"))
    return bind(start), bind(size)


def for_size(groups: Sequence[Group], index: Expr, body: Callable[[int], None]) -> None:
    """Code for the size of the piece number `index`; one branch for each."""
    if len(groups) == 1:
        body(groups[0].size)
        return
    either([index < groups[0].count], lambda: body(groups[0].size), lambda: body(groups[1].size))


# The products of Winograd's tiles before they are built: their loops, and what `explain` tells.
#
# blocks of tiles > panels > products > row block > K block > tile


def nests(region: Region, config: WinogradConfig) -> Iterator[LoopNest]:
    """The products, between the transforms."""
    problem, kernel = WinogradProblem.of(region), microkernel_named(config.kernel)
    geometry, tiles = problem.geometry, problem.tiles
    count = sum(group.count for group in config.blocks(problem)[0])
    teams, members = config.teams(problem), config.threads_panels
    block = tiles / count
    k, n_vectors = geometry.channels, math.ceil(geometry.out_channels / kernel.lanes)
    share = n_vectors / members
    panels = pieces(share, config.vectors)
    tiling = Tiling(config.rows, config.vectors, config.m_block, config.k_block)
    # The products are between the panels and a product's own loops, whose panel is one.
    inner = product_loops((block, share / panels, k), tiling, kernel.lanes, ("tiles", "panel", "C"))
    count_of, item = problem.algorithm.products, float(problem.algorithm.bytes)
    weight = item * count_of * k * kernel.lanes

    def touched(tiles: float, vectors: float) -> Bytes:
        results = 4.0 * count_of * tiles * vectors * kernel.lanes
        return item * count_of * tiles * k, weight * vectors, results

    loops = [
        Loop("thread", teams * members, "parallel", touched(tiles, n_vectors)),
        Loop("block", count / teams, "serial", touched(tiles / teams, share)),
        Loop("panel", panels, "serial", touched(block, share)),
        Loop("matrix", count_of, "serial", touched(block, share / panels)),
        *inner,
    ]
    useful = geometry.out_channels / (n_vectors * kernel.lanes)
    useful *= math.prod(geometry.outputs) * geometry.batch / (problem.algorithm.results * tiles)
    balance = balance_of(count, teams) * balance_of(n_vectors, members)
    yield LoopNest(nested(loops), geometry.flops / 2, useful, balance)


def estimate(region: Region, config: WinogradConfig, machine: Machine) -> float:
    """Cycles of the busiest thread."""
    return winograd_cost(region, config, machine).total


def products(region: Region, config: WinogradConfig, machine: Machine) -> Iterator[Product]:
    """One of the products, of f32 alone, which tiles do not multiply."""
    plan = config.plan(WinogradProblem.of(region))
    yield Product(
        part=region,
        plan=replace(plan, m=config.m_block),
        copies=0,
        cycles=winograd_cost(region, config, machine).compute,
        others=list,
    )
