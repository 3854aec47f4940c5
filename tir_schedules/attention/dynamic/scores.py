"""The scores of a band of queries: q k^T into cache, then scale, mask and largest scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Tile
from microkernels.vector.expressions import (
    Expr,
    bind,
    cast,
    constant,
    like,
    materialise,
    ramp,
    reinterpret,
)
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.scores import (
    Affine,
    FusedScores,
    affine,
    hide_later_keys,
    varies_with_rows,
)
from tir_schedules.attention.tiled.softmax import UNROLL, Band, for_vectors
from tir_schedules.core.emission import ceil_div, choose, opaque_block, tensor_parameter
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.loop_nest import LaneTotals, combine_all
from tir_schedules.core.placement import cache_parameter
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open
from tir_schedules.epilogue.epilogue import Columns, Epilogue
from tir_schedules.product.activations import Activations
from tir_schedules.product.open_operand import OpenOperand

from .growing_cache import with_room
from .product import OpenIntegers


@dataclass
class OpenScores:
    """Emits the scores of single bands.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    kernel : Microkernel
        Of the scores.
    width : int
        Vectors of a panel of keys.
    epilogue : Epilogue
        Of the scores.
    m, n, keys : Expr
        Queries, keys, and vectors of them.
    q, k : Activations, OpenOperand
        What is multiplied.
    integers : OpenIntegers
        What accumulators start with.
    band : Band
        Where scores go.
    mask : KeyMask or None
        Added in the register tile; None: the epilogue is computed row by row.
    most_rows : int
        Queries of an ordinary band.
    """

    problem: AttentionProblem
    kernel: Microkernel
    width: int
    epilogue: Epilogue
    m: Expr
    n: Expr
    keys: Expr
    q: Activations
    k: OpenOperand
    integers: OpenIntegers
    band: Band
    mask: KeyMask | None
    most_rows: int

    @property
    def lanes(self) -> int:
        """Lanes of a vector of scores."""
        return self.kernel.lanes

    def multiply(self, row: Expr, rows: int) -> None:
        """q k^T of a band into cache."""
        width = self.width
        lowest = constant(-math.inf, "float32", self.lanes)
        if self.mask is not None:
            for i in range(rows):
                self.band.scores.store(i, self.band.edge, lowest)

        self.q.begin(row, rows)
        start = self.integers.start_of_scores(self.k, self.q)

        def tile(first: Expr, size: int, panel: Expr, j: Expr | int, wide: Expr | int) -> None:
            """Vectors of keys from `first` on, which are those from `j` on of a panel."""
            with opaque_block("scores"):

                def init(i: Expr | int, j: int) -> Expr:
                    assert start is not None
                    return start(row + i, first + j)

                result = self.kernel.emit(
                    rows,
                    size,
                    (self.k.steps,),
                    lambda i, ks: self.q.load(row + i, ks[0]),
                    lambda number, ks: self.k.load(panel, wide, ks[0], j + number),
                    init if start is not None else None,
                )
                for i in range(rows):
                    self._keep(result, i, row, first)

        with I.serial(I.floordiv(self.keys, width)) as number, opaque_block("panel"):
            panel = bind(number * width)
            tile(panel, width, panel, 0, width)
        if width == 1:
            return
        left = materialise(I.floormod(self.keys, width))
        panel = materialise(self.keys - left)
        if rows < self.most_rows:  # bands of few queries, which are not worth more code
            with I.serial(left) as number, opaque_block("side"):
                tile(bind(panel + number), 1, panel, number, left)
            return
        with I.If(left > 0), I.Then():
            choose(left, range(1, width), lambda size: tile(panel, size, panel, 0, size))

    def _keep(self, result: Tile, i: int, row: Expr, first: Expr) -> None:
        """Stores one row of a tile of scores; with a mask of keys, also their maxima."""
        lanes, scores = self.lanes, self.band.scores
        if self.mask is None:
            for j in range(result.vectors):
                value = reinterpret("float32", result.value(i, j))
                scores.store(i, (first + j) * lanes, value)
            return
        largest = scores.load(i, self.band.edge, lanes)
        for j in range(result.vectors):
            masked = self.mask(cast("float32", result.value(i, j)), row, first + j)
            value = bind(self._hidden(masked, row + i, first + j))
            largest = tirx.Max(largest, value)
            scores.store(i, (first + j) * lanes, value)
        scores.store(i, self.band.edge, largest)

    def _hidden(self, value: Expr, row: Expr, vector: Expr) -> Expr:
        if self.problem.causal is None:
            return value
        causal = extent(self.problem.causal)
        return hide_later_keys(bind(value), row, vector, causal, self.lanes)

    def finish(self, batch: Expr, row: Expr, r: Expr) -> None:
        """Scale and mask of a row of scores, and the largest score of every lane."""
        lanes, band = self.lanes, self.band
        lowest = constant(-math.inf, "float32", lanes)
        largest = LaneTotals(lanes, -math.inf)
        flat = bind(batch * self.m + (row + r))
        whole = materialise(I.floordiv(self.n, lanes))

        def some(first: Expr, count: int, valid: int | Expr = lanes) -> None:
            # LLVM does not know that stores leave the next scores alone: loads come first.
            places = [first + number for number in range(count)]
            given = [bind(band.scores.load(r, vector * lanes, lanes)) for vector in places]
            values = []
            for vector, score in zip(places, given, strict=True):
                columns = Columns(vector * lanes, lanes, valid)
                if is_integer(self.problem.scores):
                    score = bind(reinterpret("int32", score))
                value = cast("float32", self.epilogue(score, flat, columns))
                if columns.mask is not None:
                    value = tirx.Select(columns.mask, bind(value), lowest)
                values.append(bind(self._hidden(value, row + r, vector)))
            largest.store(tirx.Max(largest[0], combine_all(values, tirx.Max)))
            for vector, value in zip(places, values, strict=True):
                band.scores.store(r, vector * lanes, value)

        for_vectors(whole, UNROLL, some)
        if lanes > 1:
            left = materialise(I.floormod(self.n, lanes))
            with I.If(left > 0), I.Then(), opaque_block("mask"):
                some(whole, 1, left)
        band.scores.store(r, band.edge, largest[0])


def key_mask_form(scores: Region) -> Affine | None:
    """The epilogue of the scores as a scale and a mask of keys; None if it is more than that."""
    form = affine(scores)
    if form is None or (form.operand is not None and varies_with_rows(scores, form.operand)):
        return None
    return form


class KeyMask(FusedScores):
    """As `FusedScores`; behind the last key the addends are -inf.

    Parameters
    ----------
    form, epilogue, lanes
        As of `FusedScores`; the mask is the same for all queries.
    count : Expr or int
        Keys.
    room : Expr or int
        Keys, as of `extents.allocated`.
    """

    def __init__(
        self, form: Affine, epilogue: Epilogue, lanes: int, count: Expr | int, room: Expr | int
    ) -> None:
        super().__init__(form, epilogue, lanes, lanes)
        self.by_key, self.count, self.room = True, count, room

    def begin(self, row: Expr) -> None:
        """Fills the addends, for the attention of which `row` is a flat row."""
        lanes = self.lanes
        size = ceil_div(self.room, lanes) * lanes
        bias = self.bias = I.sblock_alloc_buffer((size,), "float32", align=64)

        def put(vector: Expr, valid: int | Expr) -> None:
            columns = Columns(vector * lanes, lanes, valid)
            value = constant(0, "float32", lanes)
            if self.form.operand is not None:
                value = bind(self._mask(row, columns))
            if columns.mask is not None:
                value = tirx.Select(columns.mask, value, like(-math.inf, value))
            I.buffer_store(bias, value, [ramp(vector * lanes, lanes)])

        with opaque_block("bias"):
            with I.serial(I.floordiv(self.count, lanes)) as vector, opaque_block("keys"):
                put(vector, lanes)
            if lanes > 1:
                left = materialise(I.floormod(self.count, lanes))
                with I.If(left > 0), I.Then(), opaque_block("keys"):
                    put(materialise(I.floordiv(self.count, lanes)), left)


# How many keys any query sees, by a mask that is read when the kernel runs.
#
#     scores = where(mask, scores, -inf)        mask: bool [..., queries, keys]
#
# Keys behind the last one that the mask shows to any query have probabilities of 0: nothing is
# multiplied by them. A cache of fixed size is so read as far as it is filled.


_WORD = 8  # elements of the mask that are looked at together


def hiding_mask(scores: Region) -> int | None:
    """Number of the scores' operand that hides keys one by one; None if there is none."""
    if not scores.epilogue or scores.epilogue[-1].op != "where":
        return None
    mask, _, other = scores.epilogue[-1].args
    operands = len(scores.operands)
    number = other - operands - 1
    if not 0 < mask <= operands or number < 0:
        return None
    hidden, operand = scores.epilogue[number], scores.operands[mask - 1]
    if hidden.op != "constant" or hidden.number != -math.inf or operand.dtype != "bool":
        return None
    by_key = bool(operand.shape) and operand.shape[-1] == scores.output.shape[-1]
    return mask - 1 if by_key else None


def count_seen(scores: Region, operands: Sequence[Expr]) -> Expr | None:
    """Emits the search for the last key that is seen: how many there are up to it, at least one.

    None if there is no mask. `operands` are the parameters of the scores' operands.
    """
    number = hiding_mask(scores)
    if number is None:
        return None
    tensor = scores.operands[number]
    n, size = (as_expr(extent(each)) for each in (tensor.shape[-1], tensor.size))
    data = operands[number].data
    mask = I.decl_buffer((extent(tensor.size),), "int8", data=data, align=1)
    zero, one = (tirx.const(value, "int32") for value in (0, 1))
    seen = I.sblock_alloc_buffer((1,), "int32")
    end = I.sblock_alloc_buffer((1,), "int32")
    I.buffer_store(seen, zero, [zero])
    rows = materialise(I.floordiv(size, tirx.Max(n, one)))
    with I.serial(rows) as row, opaque_block("seen"):
        start = materialise(row * n)
        I.buffer_store(end, n, [zero])
        for elements in (_WORD, 1):
            # A condition is an And, whose second half TVM's code evaluates only if the first holds.
            first = start + end[zero] - elements
            some = I.reinterpret(f"int{8 * elements}", mask[ramp(first, elements)])
            nothing = tirx.EQ(some, tirx.const(0, f"int{8 * elements}"))
            with I.While(tirx.And(end[zero] >= seen[zero] + elements, nothing)):
                I.buffer_store(end, end[zero] - elements, [zero])
        I.buffer_store(seen, tirx.Max(seen[zero], end[zero]), [zero])
    return materialise(tirx.Max(seen[zero], one))


# Keys and values in tensors that may have room for more rows: heads lie apart then.
#
# Caches of a decoder are such tensors where a caller keeps them in a larger array; see
# `cache_parameter`.


def reject_room(problem: AttentionProblem, name: str) -> str | None:
    """Why the heads of "k" or "v" have to lie as closely as they can, or None."""
    whole, layout = problem.tensors[name], problem.layouts[name]
    columns = problem.d if name == "k" else problem.e
    if whole.dtype != "float32":
        return f"{name} is of type {whole.dtype}"
    if whole.shape[-2:] != (problem.n, columns) or (layout.row, layout.column) != (columns, 1):
        return f"rows of {name} are not behind each other"
    heads, stride = 1, columns * problem.n
    for factor, step in zip(reversed(problem.factors), reversed(layout.batch), strict=True):
        shared = heads == 1 and step == 0  # by queries that lie next to each other
        if factor != 1 and not shared:
            if step != stride:
                return f"heads of {name} are not behind each other"
            heads, stride = heads * factor, stride * factor
    if layout.offset or math.prod(whole.shape[:-2]) != heads:
        return f"{name} has more heads than the attention"
    return None


def keys_and_values(problem: AttentionProblem) -> tuple[list[Expr], dict[str, int]]:
    """The parameters of k and v; of those that may have room, how far heads are apart."""
    parameters: list[Expr] = []
    apart: dict[str, int] = {}
    for number, name in enumerate("kv", 1):
        tensor = problem.tensors[name]
        if is_open((problem.n,)) and reject_room(problem, name) is None:
            parameter, apart[name] = cache_parameter(f"input{number}", tensor)
        else:
            parameter = tensor_parameter(f"input{number}", tensor)
        parameters.append(parameter)
    return parameters, apart


def give_room(problem: AttentionProblem, apart: dict[str, int]) -> None:
    """Has an attention find heads where they are; after `read_extents`."""
    for name, distance in apart.items():
        with_room(problem, name, distance)
