"""The program of attention for sizes that are known at run time only.

for each attention, or each that shares k and v with others            tasks of one parallel loop
    pack k and v: panels of whole vectors, the last key repeated behind the last
    for each band of queries, as many as a register tile has
        scores = q k^T            code for each height of a tile, chosen by a branch
        scale, mask, maximum      row by row, from L1
        softmax                   as `tiled.softmax`
        out = scores v            code for each height, then one epilogue for all

All keys of a band are in cache at once. Keys behind the last have scores of -inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, Tile
from microkernels.vector.expressions import Expr, bind, cast, constant, materialise, ramp, splat
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.problem import AttentionProblem, flat_view
from tir_schedules.attention.tiled.matrix import Matrix
from tir_schedules.attention.tiled.scores import hide_later_keys
from tir_schedules.attention.tiled.softmax import Band, SoftmaxRows
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import (
    input_parameters,
    kernel_function,
    opaque_block,
    task_loop,
    tensor_parameter,
)
from tir_schedules.core.extents import allocated, extent, read_extents
from tir_schedules.core.flat_rows import flat_rows
from tir_schedules.core.flat_rows import flat_view as seen_as
from tir_schedules.core.group_loops import for_groups
from tir_schedules.core.open_loops import ceil_div, choose, for_tiles, share_of
from tir_schedules.core.region import Region
from tir_schedules.core.size import SymbolicSize
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.product.tile_stores import store_columns

from .key_mask import KeyMask, key_mask_form
from .packed_keys import PackedKeys, PackedValues


def build_open(region: Region, config: AttentionConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel."""
    problem = AttentionProblem(region)
    with kernel_function("attention") as builder:
        parameters = input_parameters(region)
        c = tensor_parameter("C", region.output)
        read_extents()
        first = 3 + len(problem.scores.operands)
        buffers = {
            name: flat_view(buffer, problem.tensors[name])
            for name, buffer in zip(("q", "k", "v", "out"), (*parameters[:3], c), strict=True)
        }
        scores, product = (
            _epilogue(part, operands, kernel)
            for part, operands, kernel in zip(
                (problem.scores, problem.product),
                (parameters[3:first], parameters[first:]),
                kernels_of(config),
                strict=True,
            )
        )
        OpenAttention(problem, config, isa, buffers, scores, product).emit()
    return builder.get()


def _epilogue(part: Region, operands: list[Expr], kernel: Microkernel) -> Epilogue:
    """The epilogue of a part, leading dimensions that its operands share alike as one."""
    seen = flat_rows(part)
    pairs = zip(operands, part.operands, seen.operands, strict=True)
    return Epilogue(seen, [seen_as(*each) for each in pairs], kernel.narrow)


def shared_heads(problem: AttentionProblem) -> int:
    """How many consecutive attentions share k and v, of a number that is known."""
    group = 1
    for number in reversed(range(len(problem.factors))):
        size = problem.factors[number]
        moving = any(problem.layouts[name].batch[number] for name in "kv")
        if isinstance(size, SymbolicSize) or (size > 1 and moving):
            break
        group *= size
    return group


@dataclass
class OpenAttention:
    """Emits the program.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    config : AttentionConfig
        Kernels, widths of panels and threads.
    isa : Isa
        What the target has.
    buffers : dict
        "q", "k", "v", "out": flat views of the parameters.
    scores_epilogue, product_epilogue : Epilogue
        With the operands' parameters.
    """

    problem: AttentionProblem
    config: AttentionConfig
    isa: Isa
    buffers: dict[str, Expr]
    scores_epilogue: Epilogue
    product_epilogue: Epilogue

    def emit(self) -> None:
        """All tasks."""
        problem, config = self.problem, self.config
        self.lanes = self.isa.f32_lanes
        self.scores_kernel, self.product_kernel = kernels_of(config)
        self.height = min(self.scores_kernel.mr, self.product_kernel.mr)
        self.m, self.n = (_expr(extent(size)) for size in (problem.m, problem.n))
        self.keys = materialise(ceil_div(self.n, self.lanes))
        self.pitch = materialise((self.keys + 1) * self.lanes)
        self.out_vectors = math.ceil(problem.e / self.lanes)
        group = shared_heads(problem)
        sets = _over(extent(problem.batches), group)
        count, shares = sets * config.row_shares, config.row_shares
        tasks = count if isinstance(count, int) else materialise(count)
        with task_loop(tasks, config.parallel) as task:
            number = task if shares == 1 else bind(I.floordiv(task, shares))
            part = tirx.const(0, "int32") if shares == 1 else I.floormod(task, shares)
            row, rows = share_of(self.m, part, shares)
            self._task(number, group, row, rows)

    def _task(self, number: Expr, group: int, row: Expr, rows: Expr) -> None:
        """Some queries of the attentions that share a k and a v."""
        first = number if group == 1 else bind(number * group)
        problem, config = self.problem, self.config
        k_base, v_base = (materialise(problem.base(name, first)) for name in "kv")
        room = allocated(problem.n)
        self.k = PackedKeys(
            self.scores_kernel, config.score_vectors, problem.d, self.n, self.keys, room
        )
        self.k.pack(self.buffers["k"], lambda key, d: problem.element("k", k_base, key, d))
        panels = balanced(self.out_vectors, config.product_vectors)
        self.v = PackedValues(self.product_kernel, panels, problem.e, self.n, room)
        self.v.pack(self.buffers["v"], lambda key, e: problem.element("v", v_base, key, e))
        pitch = (ceil_div(room, self.lanes) + 1) * self.lanes
        held = I.sblock_alloc_buffer((self.height * pitch,), "float32", align=64)
        scores = Matrix(held, self.pitch)
        maximum, inverse = (I.sblock_alloc_buffer((self.height,), "float32") for _ in range(2))
        self.band = Band(scores, self.keys * self.lanes, maximum, scores, inverse)
        self.result = I.sblock_alloc_buffer(
            (self.height, self.out_vectors * self.lanes), "float32", align=64
        )
        form = key_mask_form(problem.scores)
        self.mask = None
        if form is not None:
            self.mask = KeyMask(form, self.scores_epilogue, self.lanes, self.n, room)
        scale = None if form is None else form.scale
        self.softmax = SoftmaxRows(self.isa, self.product_kernel, self.band, None, scale)
        if group == 1:
            self._attend(first, row, rows)
            return
        with I.serial(group) as member, opaque_block("member"):
            self._attend(bind(first + member), row, rows)

    def _attend(self, batch: Expr, row: Expr, rows: Expr) -> None:
        """The queries of one attention, band by band."""
        self.batch = batch
        self.q_base, self.out_base = (
            materialise(self.problem.base(name, batch)) for name in ("q", "out")
        )

        if self.mask is not None:
            self.mask.begin(bind(batch * self.m))

        def scores(start: Expr, height: int) -> None:
            self._scores(bind(row + start), height)

        def after(start: Expr, height: Expr) -> None:
            first = bind(row + start)
            if self.mask is None:
                with I.serial(height) as r, opaque_block("finish"):
                    self._finish(first, r)
            self.softmax.emit(height, self.keys, 0, lambda _row: None)
            choose(height, range(1, self.height + 1), lambda known: self._product(known))
            with I.serial(height) as r, opaque_block("store"):
                self._store(first, r)

        for_tiles(rows, self.height, scores, after)

    # --- scores ----------------------------------------------------------------------------------

    def _scores(self, row: Expr, rows: int) -> None:
        """q k^T of a band into cache."""
        width = self.config.score_vectors
        lowest = constant(-math.inf, "float32", self.lanes)
        if self.mask is not None:
            for i in range(rows):
                self.band.scores.store(i, self.band.edge, lowest)

        def tile(first: Expr, size: int) -> None:
            with opaque_block("scores"):
                result = self.scores_kernel.emit(
                    rows,
                    size,
                    (self.problem.d,),
                    lambda i, ks: self._query(row + i, ks[0]),
                    lambda j, ks: self.k.load(first, size, ks[0], j),
                )
                for i in range(rows):
                    self._keep(result, i, row, first)

        with I.serial(I.floordiv(self.keys, width)) as panel, opaque_block("panel"):
            tile(bind(panel * width), width)
        if width > 1:
            left = materialise(I.floormod(self.keys, width))
            with I.If(left > 0), I.Then():
                choose(left, range(1, width), lambda size: tile(self.keys - left, size))

    def _keep(self, result: Tile, i: int, row: Expr, first: Expr) -> None:
        """Stores one row of a tile of scores; with a mask of keys, also their maxima."""
        lanes, scores = self.lanes, self.band.scores
        if self.mask is None:
            for j in range(result.vectors):
                scores.store(i, (first + j) * lanes, result.value(i, j))
            return
        largest = scores.load(i, self.band.edge, lanes)
        for j in range(result.vectors):
            masked = self.mask(result.value(i, j), row, first + j)
            value = bind(self._hidden(masked, row + i, first + j))
            largest = tirx.Max(largest, value)
            scores.store(i, (first + j) * lanes, value)
        scores.store(i, self.band.edge, largest)

    def _hidden(self, value: Expr, row: Expr, vector: Expr) -> Expr:
        if self.problem.causal is None:
            return value
        return hide_later_keys(bind(value), row, vector, self.problem.causal, self.lanes)

    def _query(self, row: Expr, step: Expr | int) -> Expr:
        at = self.problem.element("q", self.q_base, row, step)
        return splat(self.buffers["q"][at], self.lanes)

    def _finish(self, row: Expr, r: Expr) -> None:
        """Scale and mask of a row of scores, and the largest score of every lane."""
        lanes, band = self.lanes, self.band
        band.scores.store(r, band.edge, constant(-math.inf, "float32", lanes))
        flat = bind(self.batch * self.m + (row + r))

        def finish(vector: Expr, valid: int | Expr) -> None:
            value = bind(band.scores.load(r, vector * lanes, lanes))
            columns = Columns(vector * lanes, lanes, valid)
            value = cast("float32", self.scores_epilogue(value, flat, columns))
            if columns.mask is not None:
                lowest = constant(-math.inf, "float32", lanes)
                value = tirx.Select(columns.mask, bind(value), lowest)
            value = bind(self._hidden(value, row + r, vector))
            band.scores.store(r, vector * lanes, value)
            largest = band.scores.load(r, band.edge, lanes)
            band.scores.store(r, band.edge, tirx.Max(largest, value))

        with I.serial(I.floordiv(self.n, lanes)) as vector, opaque_block("mask"):
            finish(vector, lanes)
        if lanes > 1:
            left = materialise(I.floormod(self.n, lanes))
            with I.If(left > 0), I.Then(), opaque_block("mask"):
                finish(materialise(I.floordiv(self.n, lanes)), left)

    # --- product ---------------------------------------------------------------------------------

    def _product(self, rows: int) -> None:
        """Powers times v, into the band of results."""
        band, kernel = self.band, self.product_kernel

        def tile(panel: Expr | int, width: int) -> None:
            with opaque_block("product"):
                result = kernel.emit(
                    rows,
                    width,
                    (self.n,),
                    lambda i, ks: splat(
                        band.probabilities.buffer[band.probabilities.index(i, ks[0])], self.lanes
                    ),
                    lambda j, ks: self.v.load(panel, width, ks[0], j),
                )
                for i in range(rows):
                    for j in range(width):
                        columns = ramp((panel + j) * self.lanes, self.lanes)
                        I.buffer_store(self.result, result.value(i, j), [i, columns])

        for_groups(self.v.panels, tile)

    def _store(self, row: Expr, r: Expr) -> None:
        """The epilogue of a row of results, and the store."""
        problem, lanes = self.problem, self.lanes
        flat = bind(self.batch * self.m + (row + r))
        inverse = bind(splat(self.band.inverse[r], lanes))
        for vector in range(self.out_vectors):

            def store(columns: Columns, vector: int = vector) -> None:
                value = self.result[r, ramp(vector * lanes, lanes)] * inverse
                finished = self.product_epilogue(bind(value), flat, columns)
                start = problem.element("out", self.out_base, row + r, columns.start)
                place = Columns(start, columns.lanes, columns.valid)
                store_vector(self.buffers["out"], finished, [], place)

            store_columns(problem.e, lanes, vector, vector == self.out_vectors - 1, store)


def _over(count: Expr | int, group: int) -> Expr | int:
    """A number of attentions over how many share k and v."""
    if isinstance(count, int):
        return count // group
    return count if group == 1 else I.floordiv(count, group)


def _expr(size: Expr | int) -> Expr:
    return tirx.const(size, "int32") if isinstance(size, int) else size
