"""The stages of the template "conv2d_winograd", and how threads share them.

    for each block of tiles
        V = x transformed                               [products][tiles][C]
        for each panel of output channels
            M = products of V and the weight         [products][tiles][panel]
            out = M transformed back, epilogue

V and M are parts of two flat buffers that exist once for a call. A team of threads shares a V, with
a barrier after the transform; every thread has an M of its own. A team of one needs no barrier.

If image sizes are dynamic, the teams share all tiles of all images, in blocks of whole register
tiles. Whole register tiles run in a loop; the tail has code for a quarter, a half and three
quarters of the rows. Surplus rows of a tail are multiplied, and their results are not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector import memory
from microkernels.vector.expressions import Expr, Index, bind, materialise, ramp
from tir_schedules.core import emission
from tir_schedules.core.blocking import Group
from tir_schedules.core.extents import extent
from tir_schedules.core.product_plan import PANELS_AHEAD, PRODUCTS_PER_FETCH
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.epilogue.tile_results import Results
from tir_schedules.product.prefetch import Prefetch
from tir_schedules.product.tile_loops import TileLoops
from tir_schedules.product.tile_products import OperandA, OperandB

from .config import LINE, WinogradConfig, odd_lines
from .tiles import InputTransform, OutputTransform, WinogradProblem, part_of


class TileBlock(NamedTuple):
    """Tiles that go through all stages together: the first tile, the count, the block's number."""

    first: Expr
    tiles: Expr
    number: Expr


@dataclass
class WinogradStages:
    """Emits the stages of a Winograd convolution into the PrimFunc under construction."""

    problem: WinogradProblem
    config: WinogradConfig
    kernel: Microkernel
    x: Expr
    weight: Expr
    out: Expr
    epilogue: Epilogue  # its rows count the pixels of all images

    def __post_init__(self) -> None:
        problem, config, kernel = self.problem, self.config, self.kernel
        algorithm, self.multiplied = problem.algorithm, problem.algorithm.kernel(kernel)
        self.panels, self.members = config.panels(problem, kernel), config.threads_panels
        self.steps = self.multiplied.steps(problem.geometry.channels)
        self.tiles: Expr | None = None  # number of tiles, if image sizes are dynamic
        self.blocks: tuple[Group, ...] = ()
        # `each`: most blocks of one team; `most`: tiles of the largest block.
        self.each: Index
        if isinstance(problem.rows, int):
            self.blocks, self.each = config.blocks(problem)
            self.teams, self.most = config.teams(problem), self.blocks[0].size
        else:
            self.tiles = materialise(
                problem.rows * problem.columns * extent(problem.geometry.batch)
            )
            self.teams, self.most = config.threads_tiles, config.m_block
            of_team = emission.ceil_div(emission.ceil_div(self.tiles, self.teams), config.rows)
            self.each = materialise(emission.ceil_div(of_team, config.m_block // config.rows))
        lanes = kernel.lanes * self.multiplied.kr  # elements of a vector of V
        channels = -(-problem.geometry.channels // lanes) * lanes
        pitches = self._pitches(channels, algorithm.bytes)
        size = self.teams * algorithm.products * pitches[0]
        v = I.sblock_alloc_buffer((size,), algorithm.element, align=64)
        self.inputs = InputTransform(problem, self.x, lanes, v, pitches)
        pitches = self._pitches(config.vectors * kernel.lanes)
        self.m_size = algorithm.products * pitches[0] + algorithm.results * kernel.lanes
        size = self.m_size * self.teams * self.members
        m = I.sblock_alloc_buffer((size,), algorithm.total, align=64)
        of_output = problem, self.out, self.epilogue
        self.outputs = OutputTransform(*of_output, kernel.lanes, m, pitches)

    def _pitches(self, elements: int, item: int = 4) -> tuple[int, int]:
        """Elements from one matrix to the next, and from one tile of `elements` to the next."""
        tile = odd_lines(elements, item)
        return odd_lines(self.most * tile, item), tile

    def emit(self) -> None:
        """Emits all stages."""
        teams, members, each = self.teams, self.members, self.each
        team_size = self.problem.algorithm.products * self.inputs.pitches[0]

        def transform(team: Expr, member: Expr, block: TileBlock) -> None:
            self.inputs.emit(bind(team * team_size), block.first, block.tiles, members, member)

        def multiply(team: Expr, member: Expr, block: TileBlock) -> None:
            m = bind((member * teams + team) * self.m_size)
            self._panels(bind(team * team_size), m, member, block)

        def stage(step: Expr, *bodies: Callable[[Expr, Expr, TileBlock], None]) -> None:
            """Emits a parallel region over all threads."""
            with emission.task_loop(teams * members) as task:
                team, member = I.floormod(task, teams), I.floordiv(task, teams)
                with (
                    I.serial(1 if members > 1 else each) as own,
                    emission.opaque_block("block"),
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
    def _block(self, team: Expr, step: Expr) -> Iterator[TileBlock]:
        """The scope of code for one block of a team; skipped if the last step has no block."""
        if self.tiles is not None:
            # A team gets a chunk of the tiles, and a step a chunk of the team's register tiles.
            rows = self.config.rows
            first, own = emission.share_of(self.tiles, team, self.teams)
            tiles = materialise(emission.ceil_div(own, rows))
            start, count = emission.share_of(tiles, step, self.each)
            with I.If(count > 0), I.Then():
                tiles = materialise(tirx.Min(count * rows, own - start * rows))
                yield TileBlock(materialise(first + start * rows), tiles, step)
            return
        assert isinstance(self.each, int)
        number = bind(step * self.teams + team)
        all_blocks = sum(group.count for group in self.blocks)
        with ExitStack() as scope:
            if all_blocks < self.teams * self.each:
                scope.enter_context(I.If(number < all_blocks))
                scope.enter_context(I.Then())
            yield TileBlock(*_piece(self.blocks, number), number)

    def _panels(self, v: Expr, m: Expr, member: Expr, block: TileBlock) -> None:
        """Emits stages 2 and 3 for one thread's panels, from the starts `v` and `m` on."""
        share = part_of(sum(group.count for group in self.panels), self.members, member)
        with I.serial(*share) as panel, emission.opaque_block("panel"):
            start, width = _piece(self.panels, panel)

            def of_size(tiles: Index) -> None:
                def of_width(_start: Expr, known: int) -> None:
                    self._multiply(PanelProduct(self, v, m, start, known), tiles)

                emission.for_share(self.panels, panel, of_width)

            if self.tiles is None:
                emission.for_share(self.blocks, block.number, lambda _start, tiles: of_size(tiles))
            else:
                of_size(block.tiles)
            self.outputs.emit(m, block.first, block.tiles, start, width)

    def _multiply(self, product: PanelProduct, tiles: Index) -> None:
        """Emits the products of one panel."""
        if not isinstance(tiles, int):
            self._multiply_dynamic(product, tiles)
            return
        plan = replace(self.config.plan(self.problem), m=tiles, m_block=tiles)
        with I.serial(self.problem.algorithm.products) as number, emission.opaque_block("product"):
            product.begin(number)
            loops = TileLoops(plan, TransformedTiles(product), product, product)
            loops.emit(tirx.const(0, "int32"), tiles, product.first, product.width)

    def _multiply_dynamic(self, product: PanelProduct, tiles: Expr) -> None:
        """Emits the products of one panel with a dynamic number of tiles."""
        rows = self.config.rows
        # Surplus tiles have a place in V and M, so a tail needs no code for its exact height. The
        # loops of a matrix product with dynamic rows do have that code and choose it anew in each
        # product: with them, 32 channels take 5% to 14% longer, and the kernel takes 1.5 to 3.5
        # times as long to compile (Zen 4).
        sizes = emission.quarters(rows)[:-1]
        most = sizes[-1] if sizes else 0  # rows of the largest tail
        whole = materialise(I.floordiv(tiles + (rows - 1 - most), rows))
        left = materialise(tiles - whole * rows)
        kind = materialise(emission.which_size(left, sizes))
        with I.serial(self.problem.algorithm.products) as number, emission.opaque_block("product"):
            product.begin(number)
            with I.serial(whole) as tile:
                self._register_tile(product, tile, rows)
            if most:
                with I.If(left > 0), I.Then():

                    def some(which: int) -> None:
                        self._register_tile(product, whole, sizes[which])

                    emission.choose(kind, range(len(sizes)), some)

    def _register_tile(self, product: PanelProduct, number: Expr, rows: int) -> None:
        """Multiplies and stores `rows` rows of the register tile `number`."""
        first, panel, width = number * self.config.rows, product.first, product.width
        tiles = self.config.m_block // self.config.rows
        prefetch, lines = product.prefetch, math.ceil(width / tiles)
        if lines * PRODUCTS_PER_FETCH > rows * width or tiles > PANELS_AHEAD * width:
            prefetch = None

        def load_b(j: int, ks: Sequence[Index]) -> Expr | Address:
            if prefetch is not None and j == 0:
                for line in range(lines):
                    prefetch.fetch(panel, (number * self.steps + ks[0]) * lines + line, 0)
            return product.load(panel, width, ks[0], j)

        tiles_of_v = TransformedTiles(product)
        with emission.opaque_block("tile"):
            result = self.multiplied.emit(
                rows, width, (self.steps,), lambda i, ks: tiles_of_v.load(first + i, ks[0]), load_b
            )
            for i in range(rows):
                for j in range(width):
                    product.store(first + i, panel + j, result.value(i, j), j == width - 1)


@dataclass
class PanelProduct(OperandB, Results):
    """One product of a block of tiles by a panel of output channels: its weight and its results.

    M [tiles][panel] = V [tiles][C] * W [C][panel]        all three lie in flat buffers
    """

    stages: WinogradStages
    v: Expr  # where the block starts in V
    m: Expr  # where the block starts in M
    first: Expr  # first vector of output channels
    width: int  # vectors of output channels

    def __post_init__(self) -> None:
        self.kernel = self.stages.multiplied
        # Prefetches the weight of the next product, if a vector is a whole cache line.
        self.prefetch = Prefetch(self._fetch) if self.kernel.lanes == LINE else None

    def begin(self, number: Expr) -> None:
        """Computes where the operands of product `number` start."""
        stages, products = self.stages, self.stages.problem.algorithm.products
        vector = stages.steps * self.kernel.lanes * self.kernel.kr  # of a product's weight
        of_panel = self.first * (vector * products)
        self.v_start = bind(self.v + number * stages.inputs.pitches[0])
        self.w_start = bind(of_panel + number * (vector * self.width))
        self.m_start = bind(self.m + number * stages.outputs.pitches[0])

    def load(self, panel: Index, width: int, step: Index, j: int) -> Expr | Address:
        """A vector of the weight, at one step of K."""
        group, width = self.kernel.lanes * self.kernel.kr, self.width
        at = self.w_start + (step * width + j) * group
        return self.kernel.b_operand(self.stages.weight, at, width * group)

    def store(self, row: Expr, vector: Index, value: Expr, last: bool) -> None:
        """Stores a vector of the product; `vector` counts from the first output channel."""
        lanes, outputs = self.kernel.lanes, self.stages.outputs
        at = self.m_start + row * outputs.pitches[1] + (vector - self.first) * lanes
        I.buffer_store(outputs.m, value, [ramp(at, lanes)])

    def _fetch(self, _panel: Expr, line: Index, element: Index) -> None:
        after = self.stages.steps * self.width + line
        place = self.w_start + after * (LINE * self.kernel.kr) + element
        memory.prefetch(self.stages.weight[place])


@dataclass
class TransformedTiles(OperandA):
    """The transformed tiles of a product, which are rows of V."""

    product: PanelProduct

    def load(self, row: Expr, step: Index) -> Expr | Address:
        """A step of K of one tile, as `OperandA.load` returns it."""
        product, inputs = self.product, self.product.stages.inputs
        at = product.v_start + row * inputs.pitches[1] + step * product.kernel.kr
        return product.kernel.a_operand(inputs.v, [at], inputs.pitches[1])


def _piece(groups: Sequence[Group], index: Expr) -> tuple[Expr, Expr]:
    """Start and size of item `index` of the groups; the larger items come first."""
    larger = groups[0]
    start, size = index * larger.size, tirx.const(larger.size, "int32")
    if len(groups) > 1:
        smaller = groups[1]
        start = start - tirx.Max(index - larger.count, 0) * (larger.size - smaller.size)
        size = I.Select(index < larger.count, size, tirx.const(smaller.size, "int32"))
    return bind(start), bind(size)
