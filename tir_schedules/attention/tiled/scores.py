"""The scores of a row block: q k^T by register tiles into cache, scale, mask and maxima.

A tile has few steps, D / kr, so its stores matter. On Zen 4 a store of 512 bits occupies the FMA
pipes for two cycles: all stores, with those of maxima, take 48 to 64 of a tile's 400 to 1600
cycles. Additions, conversions and maxima run in parallel with the FMAs at no cost. Two stores of
256 bits would take less, but LLVM merges them, and preventing that gains nothing.

If the epilogue of the scores is a positive scale and a mask, the register tile computes scale *
accumulator + mask, an FMA for each vector, which costs no time next to those of the product. The
mask is not divided by the scale instead, so that its numbers differ among each other as in the
formula. Without a mask the tile applies no epilogue: the softmax multiplies by the scale in the FMA
that subtracts the maximum. Any other epilogue is computed row by row from the stored accumulators,
and so are scale, mask and maxima of AMX tiles, from L1, while the next tiles are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.tile import Address, Tile
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.placeholders import as_real
from tir_schedules.attention.problem import blocks_of
from tir_schedules.core import blocking, emission, extents, loop_nest, product_plan
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue
from tir_schedules.product import activations, zero_points

from .softmax import UNROLL, for_vectors

if TYPE_CHECKING:
    from .program import AttentionEmitter

_INFINITY = math.inf
# A vector of keys: its place in the row block, and its number among all keys.
_Place = tuple[Index, Index]
# A vector of keys: its panel of k, the panel's width, and its place in the panel.
_PanelPlace = tuple[Index, Index, Index]


@dataclass(frozen=True)
class Affine:
    """scale * accumulator + weight * operand + constant; a softmax without sinks drops constants.

    Attributes
    ----------
    scale, weight : float
        Positive numbers.
    operand : int or None
        Number of the scores' operand that is added.
    constant : float
        Seen by the softmax only if there are sinks.
    """

    scale: float
    weight: float = 1.0
    operand: int | None = None
    constant: float = 0.0


def affine(scores: Region) -> Affine | None:
    """The epilogue of the scores as a scale and a mask; None if it has another form."""
    # Every value as its coefficients: 0 for the accumulator, 1... for operands, -1 for a constant.
    values = [{number: 1.0} for number in range(1 + len(scores.operands))]
    for step in scores.epilogue:
        terms = [values[argument] for argument in step.args]
        if step.op == "constant":
            values.append({-1: as_real(step.number)})
        elif step.op == "cast" and step.dtype == "float32":
            values.append(terms[0])
        elif step.op in ("multiply", "divide"):
            value, factor = terms
            if step.op == "multiply" and factor.keys() != {-1}:
                value, factor = factor, value
            if factor.keys() != {-1} or (step.op == "divide" and factor[-1] == 0):
                return None
            by = factor[-1]
            values.append({k: v / by if step.op == "divide" else v * by for k, v in value.items()})
        elif step.op in ("add", "subtract"):
            sign = 1.0 if step.op == "add" else -1.0
            left, right = terms
            values.append(
                {key: left.get(key, 0.0) + sign * right.get(key, 0.0) for key in {*left, *right}}
            )
        else:
            return None
    result = values[-1] if scores.epilogue else values[0]
    if not 2.0**-60 < result.get(0, 0.0) < 2.0**60:
        return None
    operands, constant = [key for key in result if key > 0], result.get(-1, 0.0)
    if not operands:
        return Affine(result[0], constant=constant)
    key = operands[0]
    floating = scores.operands[key - 1].dtype in ("float32", "bfloat16")
    if len(operands) > 1 or not 2.0**-60 < result[key] < 2.0**60 or not floating:
        return None
    return Affine(result[0], result[key], key - 1, constant)


def varies_with_rows(scores: Region, operand: int) -> bool:
    """Whether an operand differs from query to query."""
    shape = scores.operands[operand].shape
    return len(shape) >= 2 and shape[-2] != 1


class FusedScores:
    """The epilogue of the scores, with a mask, inside the register tile.

    Parameters
    ----------
    form : Affine
        The epilogue.
    epilogue : Epilogue
        The scores' epilogue, for its operands.
    lanes : int
        Lanes of a vector.
    n, room : int or Expr
        Keys, and `extents.allocated` of them.

    Attributes
    ----------
    scale : float
        The softmax multiplies the scores by it: 1 if the tile does so because of a mask.
    """

    def __init__(self, form: Affine, epilogue: Epilogue, lanes: int, n: Index, room: Index) -> None:
        self.form, self.epilogue, self.lanes, self.n, self.room = form, epilogue, lanes, n, room
        region = epilogue.region
        self.by_row = form.operand is not None and varies_with_rows(region, form.operand)
        # One addend for each key: the mask of all queries, -inf where there is no key.
        whole = isinstance(n, int) and n % lanes == 0
        self.by_key = (form.operand is not None and not self.by_row) or not whole
        self.bias: Expr | None = None
        self.scale = form.scale if form.operand is None else 1.0

    def begin(self, row: Expr) -> None:
        """Fills the addends of the keys, for the attention that has the flat row `row`."""
        if not self.by_key:
            return
        lanes, n = self.lanes, self.n
        size = emission.ceil_div(self.room, lanes) * lanes
        bias = self.bias = I.sblock_alloc_buffer((size,), "float32", align=64)

        def put(start: Index, valid: Index) -> None:
            columns = Columns(start, lanes, valid)
            value = ex.constant(0, "float32", lanes)
            if not self.by_row and self.form.operand is not None:
                value = self._mask(row, columns)
            if columns.mask is not None:
                value = tirx.Select(columns.mask, value, ex.like(-_INFINITY, value))
            I.buffer_store(bias, value, [ex.ramp(start, lanes)])

        with emission.opaque_block("bias"):
            emission.for_vectors(n, lanes, "keys", put)

    def _mask(self, row: Expr, columns: Columns) -> Expr:
        """The addends of the mask for one vector."""
        assert self.form.operand is not None
        mask = ex.bind(self.epilogue.operand(self.form.operand, row, columns))
        weight = self.form.weight
        return mask if weight == 1.0 else ex.bind(mask * ex.like(weight, mask))

    def __call__(self, value: Expr, row: Expr, vector: Index) -> Expr:
        """Computes one vector of scores from f32 accumulators."""
        lanes = self.lanes
        if self.form.operand is not None and self.form.scale != 1.0:
            value = value * ex.like(self.form.scale, value)
        if self.by_row:
            value = value + self._mask(row, Columns(vector * lanes, lanes, lanes))
        if self.bias is not None:
            value = value + self.bias[ex.ramp(vector * lanes, lanes)]
        return value


def can_fuse(scores: Region, lanes: int) -> Affine | None:
    """The form of an epilogue that `FusedScores` computes, else None.

    A mask that differs from query to query has to have whole vectors, and static sizes.
    """
    form = affine(scores)
    if form is None or form.operand is None or not varies_with_rows(scores, form.operand):
        return form
    return None if scores.is_dynamic or scores.output.shape[-1] % lanes else form


@dataclass(frozen=True)
class KeyBlock:
    """Vectors of keys [start, start + size), cut into panels."""

    start: Index
    size: int
    panels: tuple[blocking.Group, ...]


class ScoreTiles:
    """Emits the scores of row blocks.

    Parameters
    ----------
    emitter : AttentionEmitter
        The kernel, the epilogue and the row block.
    q, k : Activations, PackedOperand
        The operands.
    batch : Expr
        Number of the attention.
    """

    def __init__(
        self, emitter: AttentionEmitter, q: activations.Activations, k: Any, batch: Expr
    ) -> None:
        self.q, self.k, self.batch, self.buffers = q, k, batch, emitter.buffers
        self.problem, self.kernel = emitter.problem, emitter.scores_kernel
        self.epilogue, self.fused, self.band = emitter.scores_epilogue, emitter.fused, emitter.band
        self.lanes, part = self.kernel.lanes, self.problem.scores
        sums = self.k.column_sum, self.q.row_sum
        self.start = zero_points.start_of(part, self.kernel, {}, self.problem.d, *sums)

    def emit(self, row: Expr, rows: int, block: KeyBlock, visible: Index) -> None:
        """Emits q k^T of a row block into cache, for a static number of keys."""
        self._clear(rows)
        self._read_sinks(row, rows)

        def panel(first: Index, width: int) -> None:
            key = block.start + first
            emission.for_groups(
                blocks_of(self.kernel, rows),
                lambda r, size: self._tile(row, r, size, (first, key), width, (key, width, 0)),
            )

        for group in block.panels:
            _for_some(group, visible, panel)

    def emit_dynamic(self, row: Expr, rows: int, tallest: bool, vectors: Expr) -> None:
        """Emits q k^T of a row block into cache, for a dynamic number of keys.

        Only the highest row blocks are worth code for every width of a panel. `vectors` of keys are
        needed.
        """
        if self.fused is not None:
            self._clear(rows)
        self._read_sinks(row, rows)
        self.q.begin(row, rows)
        panels = self.k.panels

        def whole(panel: Expr, width: int) -> None:
            self._tile(row, 0, rows, (panel, panel), width, (panel, width, 0))

        def narrow(panel: Expr, width: Expr) -> None:
            if tallest:
                emission.choose(width, range(1, panels.width), lambda size: whole(panel, size))
                return
            with I.serial(width) as j, emission.opaque_block("side"):
                vector = ex.bind(panel + j)
                self._tile(row, 0, rows, (vector, vector), 1, (panel, width, j))

        panels.emit(whole, narrow, vectors)

    def _tile(
        self, row: Expr, r0: Index, rows: int, at: _Place, width: int, of_panel: _PanelPlace
    ) -> None:
        """Emits `rows` rows of a row block, from `r0` on, by `width` vectors of keys."""
        kernel, start, (first, key), (panel, wide, j0) = self.kernel, self.start, at, of_panel
        with emission.opaque_block("scores"):
            init, columns = (None, None) if start is None else start.of_tile(row + r0, key)
            into = self.band.scores.place(r0, first * self.lanes) if kernel.by_tiles else None

            def read_q(i: Index, ks: Sequence[Index]) -> Expr | Address:
                return self.q.load(row + r0 + i, ks[0])

            def read_k(j: int, ks: Sequence[Index]) -> Expr | Address:
                return self.k.load(panel, wide, ks[0], j0 + j)

            given = rows, width, (self.k.steps,), read_q, read_k, init, into
            result = kernel.emit(*given, peel=self.q.tail, columns=columns)
            if into is None or self.fused is not None:
                self._for_rows(rows, lambda i: self._keep(result, i, row, r0 + i, at))

    def _clear(self, rows: int) -> None:
        """Sets the maxima of `rows` rows to -inf."""
        lowest = ex.constant(-_INFINITY, "float32", self.lanes)
        self._for_rows(rows, lambda r: self.band.scores.store(r, self.band.edge, lowest))

    def sink(self, row: Expr) -> Expr | None:
        """The score of a query's sink, scaled as the scores in cache are; None without sinks."""
        sink = self.problem.sink(self.buffers, self.batch, row)
        scale = 1.0 if self.fused is None else self.fused.scale
        return sink if sink is None or scale == 1.0 else ex.bind(sink * ex.like(1 / scale, sink))

    def _read_sinks(self, row: Expr, rows: int) -> None:
        """Reads the sinks of `rows` queries from `row` on."""
        if self.band.sinks is None:
            return
        with I.serial(rows) as r, emission.opaque_block("sinks"):
            sink = self.sink(row + r)
            assert sink is not None
            I.buffer_store(self.band.sinks, sink, [r])

    def _for_rows(self, rows: int, body: Callable[[Index], None]) -> None:
        """Runs `body(row)` for the rows of a tile: unrolled if they are in registers."""
        if self.kernel.by_tiles:
            with I.serial(rows) as row:
                body(row)
            return
        for number in range(rows):
            body(number)

    def _keep(self, result: Tile, i: Index, row: Expr, r: Index, at: _Place) -> None:
        """Stores one row of a tile of scores, and the row's maxima."""
        lanes, band, (first, key) = self.lanes, self.band, at
        largest = band.scores.load(r, band.edge, lanes)
        for j in range(result.vectors):
            value = result.value(i, j)
            if result.place is not None:
                value = ex.reinterpret(self.kernel.acc_dtype, value)
            if self.fused is None:
                value = ex.reinterpret("float32", value)
            else:
                value = self.fused(ex.cast("float32", value), self._flat(row, r), key + j)
                value = ex.bind(self._hidden(value, row + r, key + j))
                largest = tirx.Max(largest, value)
            band.scores.store(r, (first + j) * lanes, value)
        if self.fused is not None:
            band.scores.store(r, band.edge, largest)

    def _hidden(self, value: Expr, row: Expr, vector: Index) -> Expr:
        """Replaces the scores of keys beyond `row + causal` by -inf; `row` counts queries."""
        if self.problem.causal is None:
            return value
        if self.problem.region.is_dynamic:
            value = ex.bind(value)
        keys = ex.ramp(vector * self.lanes, self.lanes)
        last = ex.splat(row + extents.extent(self.problem.causal), self.lanes)
        return tirx.Select(tirx.LE(keys, last), value, ex.like(-_INFINITY, value))

    def _flat(self, row: Expr, r: Index = 0) -> Expr:
        """The number of a row among the queries of all attentions."""
        return self.batch * extents.extent(self.problem.m) + row + r

    def _finished(self, value: Expr, flat: Expr, row: Expr, vector: Expr, valid: Index) -> Expr:
        """Applies the epilogue to a vector of accumulators; `vector` counts those of all keys."""
        columns = Columns(vector * self.lanes, self.lanes, valid)
        value = ex.cast("float32", self.epilogue(value, flat, columns))
        if columns.mask is not None:
            value = tirx.Select(columns.mask, value, ex.like(-_INFINITY, value))
        return ex.bind(self._hidden(value, row, vector))

    def finish(self, row: Expr, r: Expr, block: KeyBlock, visible: Index) -> None:
        """Applies the epilogue to a row of accumulators in cache, and computes the row's maxima."""
        lanes, n, band = self.lanes, self.problem.n, self.band
        whole = n // lanes

        def finish(vector: Expr, valid: int) -> None:
            value = band.scores.load(r, vector * lanes, lanes)
            if product_plan.is_integer(self.problem.scores):
                value = ex.reinterpret("int32", value)
            at = block.start + vector
            value = self._finished(value, self._flat(row, r), row + r, at, valid)
            band.scores.store(r, vector * lanes, value)
            largest = band.scores.load(r, band.edge, lanes)
            band.scores.store(r, band.edge, tirx.Max(largest, value))

        with I.serial(visible) as vector:
            if n % lanes == 0:
                finish(vector, lanes)
            elif whole == 0:
                finish(vector, n)
            else:
                inside, cut = block.start + vector < whole, n % lanes
                emission.branch(inside, lambda: finish(vector, lanes), lambda: finish(vector, cut))

    def finish_dynamic(self, row: Expr, r: Expr, n: Index) -> None:
        """`finish` for a dynamic number of keys, several vectors at a time."""
        lanes, band = self.lanes, self.band
        largest, flat = loop_nest.LaneTotals(lanes, -_INFINITY), ex.bind(self._flat(row + r))
        whole = ex.materialise(I.floordiv(n, lanes))

        def some(first: Expr, count: int, valid: Index = lanes) -> None:
            # LLVM does not know that stores do not change the next scores, so loads come first.
            places = [first + number for number in range(count)]
            given = [ex.bind(band.scores.load(r, vector * lanes, lanes)) for vector in places]
            values = []
            for vector, score in zip(places, given, strict=True):
                if product_plan.is_integer(self.problem.scores):
                    score = ex.bind(ex.reinterpret("int32", score))
                values.append(self._finished(score, flat, row + r, vector, valid))
            largest.store(tirx.Max(largest[0], loop_nest.combine_all(values, tirx.Max)))
            for vector, value in zip(places, values, strict=True):
                band.scores.store(r, vector * lanes, value)

        for_vectors(whole, UNROLL, some)
        if lanes > 1:
            left = ex.materialise(I.floormod(n, lanes))
            with I.If(left > 0), I.Then(), emission.opaque_block("mask"):
                some(whole, 1, left)
        band.scores.store(r, band.edge, largest[0])


def _for_some(group: blocking.Group, visible: Index, body: Callable[[Index, int], None]) -> None:
    """Runs `body` for the pieces of a group that begin before `visible`."""
    if isinstance(visible, int):
        emission.for_groups([group], body)
        return
    needed = I.floordiv(visible - group.start + (group.size - 1), group.size)
    with I.serial(tirx.Max(0, tirx.Min(needed, group.count))) as piece:
        body(group.start + piece * group.size, group.size)
