"""The stages of the template "conv2d_winograd" inside a PrimFunc.

    V [36][tiles][C]        of a block of tiles: x, transformed
    M [36][tiles][panel]    the 36 products of a panel of output channels
    out                     M transformed back, through the epilogue

V and M are parts of two flat buffers that exist once for a call. Every thread has an M of its own,
a group of threads shares a V. What a tile reads outside of x is 0, by masks; nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Address, Microkernel
from microkernels.prefetch import prefetch
from microkernels.vectors import Expr, bind, constant, ramp, splat, vector_type

from .blocking import Group, balanced, shares
from .collapse import item_operands
from .epilogue import Columns, Epilogue, store_vector
from .normalize_view import reshaped
from .region import Region, Tensor
from .tile_loops import TileLoops, for_groups, for_share
from .tile_stores import LONG_EPILOGUE, store_columns
from .winograd_config import LINE, WinogradConfig, WinogradProblem, odd_lines
from .winograd_transforms import (
    PRODUCTS,
    REACH,
    TILE,
    input_transform,
    output_transform,
)


def flat_epilogue(region: Region, buffers: Sequence[Expr], kernel: Microkernel) -> Epilogue:
    """The epilogue over a matrix [pixels, channels], if every operand is one too.

    A row of the matrix is the address of a pixel then, without divisions.
    """
    *leading, n = region.output.shape
    listed = item_operands(region)
    operands, views = [], []
    for number, (tensor, buffer) in enumerate(zip(region.operands, buffers, strict=True)):
        shape = tensor.shape
        if number not in listed and len(shape) > 1:
            if shape[:-1] == tuple(leading):
                shape = (math.prod(leading), shape[-1])
            elif math.prod(shape[:-1]) == 1:
                shape = shape[-1:]
            else:
                return Epilogue(region, buffers, kernel.narrow)
        operands.append(Tensor(shape, tensor.dtype, tensor.constant))
        views.append(reshaped(buffer, tensor, shape))
    output = Tensor((math.prod(leading), n), region.output.dtype)
    flat = region.replace(operands=tuple(operands), output=output)
    return Epilogue(flat, views, kernel.narrow)


@dataclass(frozen=True)
class Winograd:
    """A region and what it works on.

    Attributes
    ----------
    problem : WinogradProblem
        The region in tiles.
    config : WinogradConfig
        Its numbers.
    kernel : Microkernel
        Of the products.
    x, weight, out : buffers
        Parameters; the weight is packed.
    epilogue : Epilogue
        Of the region, with rows counted over all pixels.
    """

    problem: WinogradProblem
    config: WinogradConfig
    kernel: Microkernel
    x: Expr
    weight: Expr
    out: Expr
    epilogue: Epilogue

    @cached_property
    def block(self) -> int:
        """Tiles of the largest block."""
        return self.problem.blocks(self.config)[0][0].size

    @cached_property
    def v_pitches(self) -> tuple[int, int]:
        """Elements of V from one matrix, and from one tile, to the next."""
        tile = odd_lines(self.problem.geometry.channels)
        return odd_lines(self.block * tile), tile

    @cached_property
    def m_pitches(self) -> tuple[int, int]:
        """The same of M."""
        tile = odd_lines(self.config.vectors * self.kernel.lanes)
        return odd_lines(self.block * tile), tile

    @property
    def v_size(self) -> int:
        """Elements of the V of a group of threads."""
        return PRODUCTS * self.v_pitches[0]

    @property
    def m_size(self) -> int:
        """Elements of the M of a thread, and of a tile of results behind it."""
        return PRODUCTS * self.m_pitches[0] + max(LINE, TILE * TILE * self.kernel.lanes)

    @property
    def _channel_vectors(self) -> int:
        return math.ceil(self.problem.geometry.channels / self.kernel.lanes)

    def transform(
        self, v: Expr, v_start: Expr, first: Expr, tiles: int, member: Expr | None = None
    ) -> None:
        """Stage 1: the tiles from `first` on into V, or one member's share of them."""
        members = 1 if member is None else self.config.threads_panels
        by_channels = self._channel_vectors >= members
        of_tiles = _part(tiles, 1 if by_channels else members, member)
        of_vectors = _part(self._channel_vectors, members if by_channels else 1, member)
        top, left = self.problem.geometry.before
        with I.serial(*of_tiles) as tile, I.sblock("transform"):
            I.reads()
            I.writes()
            sample, row, column = self._place(first + tile)
            y, x = bind(row * TILE - top), bind(column * TILE - left)
            rows_inside = [self._inside(0, y, i) for i in range(REACH)]
            columns_inside = [self._inside(1, x, j) for j in range(REACH)]

            def emit(edge: bool) -> None:
                with I.serial(*of_vectors) as vector, I.sblock("vector"):
                    I.reads()
                    I.writes()

                    def load(i: int, j: int) -> Expr:
                        found = [*rows_inside[i], *columns_inside[j]] if edge else []
                        return self._load([sample, y + i, x + j], vector, found)

                    self._transform_vector(load, v, v_start + tile * self.v_pitches[1], vector)

            inside = [*self._all_inside(0, y), *self._all_inside(1, x)]
            _either(inside, lambda: emit(False), lambda: emit(True))

    def _transform_vector(
        self, load: Callable[[int, int], Expr], v: Expr, start: Expr, vector: Expr
    ) -> None:
        """One vector of channels of one tile."""
        lanes = self.kernel.lanes
        columns = [
            input_transform([bind(load(i, j)) for i in range(REACH)]) for j in range(REACH)
        ]
        for i in range(REACH):
            for j, value in enumerate(input_transform([column[i] for column in columns])):
                at = start + (i * REACH + j) * self.v_pitches[0] + vector * lanes
                I.buffer_store(v, value, [ramp(at, lanes)])

    def multiply(
        self, v: Expr, v_start: Expr, m: Expr, m_start: Expr, tiles: int, panel: Expr, width: int
    ) -> None:
        """Stage 2: the 36 products of a panel, `width` vectors from vector `panel` on."""
        config, kernel, lanes = self.config, self.kernel, self.kernel.lanes
        k = self.problem.geometry.channels
        matrix, tile_pitch = self.v_pitches
        m_matrix, m_tile = self.m_pitches
        first_weight = panel * (lanes * PRODUCTS * k)
        with I.serial(PRODUCTS) as number, I.sblock("product"):
            I.reads()
            I.writes()
            start = bind(first_weight + number * (k * width * lanes))

            def load_a(row: Expr, step: Expr) -> Expr | Address:
                at = v_start + number * matrix + row * tile_pitch + step
                return kernel.a_operand(v, [at], tile_pitch)

            def load_b(_panel: Expr, _width: int, step: Expr, j: int) -> Expr | Address:
                at = start + step * (width * lanes) + j * lanes
                return kernel.b_operand(self.weight, at, width * lanes)

            def store(row: Expr, vector: Expr, value: Expr, _last: bool) -> None:
                at = m_start + number * m_matrix + row * m_tile + (vector - panel) * lanes
                I.buffer_store(m, value, [ramp(at, lanes)])

            def fetch(_panel: Expr, line: Expr) -> None:
                prefetch(self.weight[start + k * width * lanes + line * lanes])

            TileLoops(
                kernel,
                kernel.steps(k),
                config.rows,
                config.vectors,
                tiles,
                config.k_block,
                load_a,
                load_b,
                store,
                fetch=fetch if lanes == LINE else None,
            ).emit(tirx.const(0, "int32"), tiles, panel, width)

    def restore(
        self, m: Expr, m_start: Expr, first: Expr, tiles: int, panel: Expr, width: int
    ) -> None:
        """Stage 3: M through the second transform and the epilogue to its place."""
        lanes, (matrix, tile_pitch) = self.kernel.lanes, self.m_pitches
        height, image_width = self.problem.geometry.outputs
        with I.serial(tiles) as tile, I.sblock("restore"):
            I.reads()
            I.writes()
            sample, row, column = self._place(first + tile)
            y, x = bind(row * TILE), bind(column * TILE)
            with I.serial(width) as vector, I.sblock("vector"):
                I.reads()
                I.writes()
                start = m_start + tile * tile_pitch + vector * lanes
                halves = [
                    output_transform(
                        [
                            bind(m[ramp(start + (i * REACH + j) * matrix, lanes)])
                            for i in range(REACH)
                        ]
                    )
                    for j in range(REACH)
                ]
                results = [output_transform([half[p] for half in halves]) for p in range(TILE)]

                def put(value: Expr, i: Expr | int, j: Expr | int) -> None:
                    self._store(value, sample, y + i, x + j, panel + vector)

                def whole() -> None:
                    for i in range(TILE):
                        for j in range(TILE):
                            put(results[i][j], i, j)

                def cut() -> None:
                    self._through_memory(m, m_start, results, y, x, put)

                conditions = []
                if height % TILE:
                    conditions.append(tirx.LE(y + TILE, height))
                if image_width % TILE:
                    conditions.append(tirx.LE(x + TILE, image_width))
                if self.epilogue.cost > LONG_EPILOGUE:
                    cut()
                else:
                    _either(conditions, whole, cut)

    def _through_memory(
        self,
        m: Expr,
        m_start: Expr,
        results: Sequence[Sequence[Expr]],
        y: Expr,
        x: Expr,
        put: Callable[[Expr, Expr, Expr], None],
    ) -> None:
        """Stores a tile of results by loops over those that exist."""
        lanes, rest = self.kernel.lanes, m_start + PRODUCTS * self.m_pitches[0]
        height, width = self.problem.geometry.outputs
        for i in range(TILE):
            for j in range(TILE):
                at = ramp(rest + (i * TILE + j) * lanes, lanes)
                I.buffer_store(m, results[i][j], [at])
        rows, columns = tirx.Min(height - y, TILE), tirx.Min(width - x, TILE)
        with I.serial(rows) as i, I.serial(columns) as j, I.sblock("result"):
            I.reads()
            I.writes()
            put(bind(m[ramp(rest + (i * TILE + j) * lanes, lanes)]), i, j)

    def _store(self, value: Expr, sample: Expr, y: Expr, x: Expr, vector: Expr) -> None:
        """One vector of output channels of one pixel."""
        height, width = self.problem.geometry.outputs
        n = self.problem.geometry.out_channels
        pixel = (sample * height + y) * width + x

        def store(columns: Columns) -> None:
            store_vector(self.out, self.epilogue(value, pixel, columns), [sample, y, x], columns)

        store_columns(n, self.kernel.lanes, vector, True, store)

    def _place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """Sample, row and column of a tile."""
        rows, columns = self.problem.rows, self.problem.columns
        tile = bind(tile)
        line = bind(I.floordiv(tile, columns))
        if self.problem.geometry.batch == 1:
            return tirx.const(0, "int32"), line, bind(tile - line * columns)
        sample = bind(I.floordiv(line, rows))
        return sample, bind(line - sample * rows), bind(tile - line * columns)

    def _inside(self, axis: int, start: Expr, offset: int) -> list[Expr]:
        """What must hold for a position of a tile to lie in x; nothing if it always does."""
        geometry = self.problem.geometry
        lowest = offset - geometry.before[axis]
        last = (self.problem.rows, self.problem.columns)[axis] - 1
        conditions = []
        if lowest < 0:
            conditions.append(tirx.GE(start + offset, 0))
        if lowest + last * TILE >= geometry.extents[axis]:
            conditions.append(tirx.LT(start + offset, geometry.extents[axis]))
        return conditions

    def _all_inside(self, axis: int, start: Expr) -> list[Expr]:
        """The same for all positions of a tile along an axis."""
        first, *_, last = (self._inside(axis, start, offset) for offset in range(REACH))
        return [*first[: int(self.problem.geometry.before[axis] > 0)], *last[-1:]]

    def _load(self, index: Sequence[Expr], vector: Expr, conditions: Sequence[Expr]) -> Expr:
        """A vector of channels of a pixel; zeros where a condition does not hold."""
        lanes, channels = self.kernel.lanes, self.problem.geometry.channels
        at = ramp(vector * lanes, lanes)
        inside = _all(conditions)
        if lanes == 1:
            value = self.x[(*index, at)]
            return value if inside is None else I.if_then_else(inside, value, constant(0, "float32", 1))
        mask = None if inside is None else splat(inside, lanes)
        if channels % lanes:
            exists = tirx.LT(at, constant(channels, "int32", lanes))
            mask = exists if mask is None else tirx.And(mask, exists)
        if mask is None:
            return self.x[(*index, at)]
        return I.masked_load(vector_type("float32", lanes), self.x, *index, at, mask)


def _part(count: int, members: int, member: Expr | None) -> tuple[Expr | int, Expr | int]:
    """First and end of one member's part of `count` things."""
    if members == 1:
        return 0, count
    return I.floordiv(member * count, members), I.floordiv((member + 1) * count, members)


def _all(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction; None of nothing."""
    result = None
    for condition in conditions:
        result = condition if result is None else tirx.And(result, condition)
    return result


def _either(
    conditions: Sequence[Expr], then: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    """One of two pieces of code; the first alone if there are no conditions."""
    condition = _all(conditions)
    if condition is None:
        then()
        return
    with I.If(condition):
        with I.Then():
            then()
        with I.Else():
            otherwise()


def emit_program(work: Winograd, n_vectors: int) -> None:
    """All stages, shared among the configuration's threads."""
    problem, config = work.problem, work.config
    teams, members = min(config.threads_tiles, problem.tiles), config.threads_panels
    blocks, each = problem.blocks(config)
    columns = shares(n_vectors, min(members, n_vectors))
    members_at_work = sum(group.count for group in columns)
    tasks = teams * members
    count = sum(group.count for group in blocks)
    v = I.sblock_alloc_buffer((teams * work.v_size,), "float32", align=64)
    m = I.sblock_alloc_buffer((tasks * work.m_size,), "float32", align=64)

    def for_block(step: Expr | int, team: Expr, body: Callable[[Expr, int], None]) -> None:
        number = step * teams + team
        if count == teams * each:
            for_share(blocks, number, body)
            return
        with I.If(number < count):
            with I.Then():
                for_share(blocks, number, body)

    def multiply(task: Expr, team: Expr, member: Expr, first: Expr, tiles: int) -> None:
        v_start, m_start = bind(team * work.v_size), bind(task * work.m_size)

        def panel(vector: Expr, width: int) -> None:
            work.multiply(v, v_start, m, m_start, tiles, vector, width)
            work.restore(m, m_start, first, tiles, vector, width)

        def part(start: Expr, vectors: int) -> None:
            for_groups(
                balanced(vectors, config.vectors),
                lambda vector, width: panel(bind(start + vector), width),
            )

        for_share(columns, member, part)

    if members == 1:
        with _parallel(tasks) as task, I.sblock("task"):
            I.reads()
            I.writes()
            with I.serial(each) as step, I.sblock("block"):
                I.reads()
                I.writes()

                def whole(first: Expr, tiles: int) -> None:
                    first = bind(first)
                    work.transform(v, task * work.v_size, first, tiles)
                    multiply(task, task, tirx.const(0, "int32"), first, tiles)

                for_block(step, task, whole)
        return
    with I.serial(each) as step:
        with _parallel(tasks) as task, I.sblock("inputs"):
            I.reads()
            I.writes()
            team, member = I.floormod(task, teams), I.floordiv(task, teams)

            def inputs(first: Expr, tiles: int) -> None:
                work.transform(v, bind(team * work.v_size), bind(first), tiles, member)

            for_block(step, team, inputs)
        with _parallel(teams * members_at_work) as task, I.sblock("products"):
            I.reads()
            I.writes()
            team, member = I.floormod(task, teams), I.floordiv(task, teams)
            for_block(
                step,
                team,
                lambda first, tiles: multiply(task, team, member, bind(first), tiles),
            )


def _parallel(tasks: int):  # type: ignore[no-untyped-def]
    return I.parallel(tasks) if tasks > 1 else I.serial(1)
