"""The product of a band of probabilities with v, and how results are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, bind, materialise, ramp, splat
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.softmax import Band
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import ceil_div, choose, for_groups, opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.product.activations import Activations
from tir_schedules.product.open_operand import OpenOperand, OpenWords
from tir_schedules.product.packed_operand import StoredOperand
from tir_schedules.product.tile_products import store_columns
from tir_schedules.product.zero_points import Start, ZeroPoints


@dataclass
class OpenProduct:
    """Emits the results of single bands.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    kernel : Microkernel
        Of the product.
    epilogue : Epilogue
        Of the product.
    m, n, keys : Expr
        Queries, keys, and vectors of them.
    v : PackedValues
        What probabilities are multiplied with.
    integers : OpenIntegers
        What accumulators start with.
    band : Band
        Where probabilities are.
    result : buffer
        [rows, columns]: products without their epilogue.
    out : buffer
        The result, flat.
    """

    problem: AttentionProblem
    kernel: Microkernel
    epilogue: Epilogue
    m: Expr
    n: Expr
    keys: Expr
    v: PackedValues
    integers: OpenIntegers
    band: Band
    result: Expr
    out: Expr

    @property
    def lanes(self) -> int:
        """Lanes of a vector of columns."""
        return self.kernel.lanes

    def pad(self, r: Expr) -> None:
        """Zeros for the keys behind the vectors, where a step of the product has more."""
        kernel, computed = self.kernel, self.keys * self.lanes
        if kernel.kr > self.lanes:
            zero = tirx.const(0, kernel.operand_dtype)
            with I.serial(self.v.steps * kernel.kr - computed) as key:
                self.band.probabilities.store(r, computed + key, zero)

    def multiply(self, rows: int) -> None:
        """Powers, or integers, times v, into the band of results."""
        probabilities, kernel = self.band.probabilities, self.kernel
        start = self.integers.start_of_product(self.v, self.band, self.n)

        def tile(panel: Expr | int, width: int) -> None:
            with opaque_block("product"):

                def init(i: Expr | int, j: int) -> Expr:
                    assert start is not None
                    return start(i, panel + j)

                result = kernel.emit(
                    rows,
                    width,
                    (self.v.steps,),
                    lambda i, ks: kernel.a_operand(
                        probabilities.buffer, [probabilities.index(i, ks[0] * kernel.kr)], 0
                    ),
                    lambda j, ks: self.v.load(panel, width, ks[0], j),
                    init if start is not None else None,
                )
                for i in range(rows):
                    for j in range(width):
                        columns = ramp((panel + j) * self.lanes, self.lanes)
                        I.buffer_store(self.result, result.value(i, j), [i, columns])

        for_groups(self.v.panels, tile)

    def store(self, batch: Expr, out_base: Expr, row: Expr, r: Expr) -> None:
        """The epilogue of a row of results, and the store."""
        problem, lanes = self.problem, self.lanes
        flat = bind(batch * self.m + (row + r))
        vectors = math.ceil(problem.e / lanes)
        inverse = bind(splat(self.band.inverse[r], lanes))
        for vector in range(vectors):

            def put(columns: Columns, vector: int = vector) -> None:
                value = self.result[r, ramp(vector * lanes, lanes)]
                if not is_integer(problem.product):
                    value = value * inverse
                finished = self.epilogue(bind(value), flat, columns)
                start = problem.element("out", out_base, row + r, columns.start)
                place = Columns(start, columns.lanes, columns.valid)
                store_vector(self.out, finished, [], place)

            store_columns(problem.e, lanes, vector, vector == vectors - 1, put)


@dataclass(frozen=True)
class OpenIntegers:
    """What the accumulators of both products start with; nothing where they are floats.

    Attributes
    ----------
    problem : AttentionProblem
        The attention.
    scores_kernel, product_kernel : Microkernel
        What multiplies it.
    """

    problem: AttentionProblem
    scores_kernel: Microkernel
    product_kernel: Microkernel

    @property
    def needs_sums_of_queries(self) -> bool:
        """Whether the elements of each query are added up."""
        points = _points(self.problem.scores, self.scores_kernel)
        return points is not None and points.needs_row_sums

    @property
    def needs_sums_of_probabilities(self) -> bool:
        """Whether the probabilities of each query are."""
        points = _points(self.problem.product, self.product_kernel)
        return points is not None and points.needs_row_sums

    def add_up(self, k: OpenOperand, v: PackedValues) -> None:
        """Adds up keys, and columns of v, where zero points need it."""
        scores = _points(self.problem.scores, self.scores_kernel)
        if scores is not None and scores.needs_column_sums:
            k.add_up()
        product = _points(self.problem.product, self.product_kernel)
        if product is not None and product.needs_column_sums:
            v.add_up()

    def start_of_scores(self, k: OpenOperand, q: Activations) -> Start | None:
        """(query, vector of keys) -> accumulators; None: zeros."""
        part = self.problem.scores
        if not is_integer(part):
            return None
        start = Start(part, self.scores_kernel, {}, self.problem.d, k.column_sum, q.row_sum)
        return start if start.needed else None

    def start_of_product(self, v: PackedValues, band: Band, n: Expr) -> Start | None:
        """(row of a band, vector of columns) -> accumulators; None: zeros."""
        part = self.problem.product
        if not is_integer(part):
            return None

        def row_sum(row: Expr | int) -> Expr:
            return band.sums[row] if band.sums is not None else tirx.const(0, "int32")

        start = Start(part, self.product_kernel, {}, n, v.column_sum, row_sum)
        return start if start.needed else None


def _points(part: Region, kernel: Microkernel) -> ZeroPoints | None:
    return ZeroPoints.of(part, kernel) if is_integer(part) else None


class PackedValues(OpenWords):
    """v of one attention, packed for register tiles; the number of keys is known at run time only.

        panels of columns, each [keys / kr][columns of the panel][kr]

    Behind the last key, v is 0.

    v [n, e], packed by the task that reads it.

    Parameters
    ----------
    source, kernel
        As of `PackedWords`.
    panels : sequence of Group
        How the vectors of columns are cut.
    room : Expr
        The number of keys as of `extents.allocated`.
    """

    def __init__(
        self,
        source: StoredOperand,
        kernel: Microkernel,
        panels: Sequence[Group],
        room: Expr | int,
    ) -> None:
        super().__init__(source, kernel)
        self.panels, self.n = panels, as_expr(source.k)
        self.steps = self.n if self.kr == 1 else materialise(ceil_div(self.n, self.kr))
        self.columns = sum(group.count * group.size for group in panels) * self.lanes
        size = ceil_div(room, self.kr) * (self.columns * self.kr)
        self.buffer = I.sblock_alloc_buffer((size,), self.element, align=64)

    def load(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        """One vector of columns of kr keys."""
        return self.buffer[ramp(self._start(panel, width, step, j), self.group)]

    def _start(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        return (panel * self.steps + (step * width + j)) * self.group

    def pack(self) -> None:
        """Emits the loops that pack it: rows are copied, kr of them merged into words."""
        columns_of_v = self.source.n
        assert isinstance(columns_of_v, int)

        def rows(step: Expr, valid: int) -> None:
            def panel(start: Expr | int, width: int) -> None:
                for j in range(width):

                    def put(columns: Columns, j: int = j) -> None:
                        self._copied(step, valid, columns, self._start(start, width, step, j))

                    store_columns(columns_of_v, self.lanes, start + j, j == width - 1, put)

            for_groups(self.panels, panel)

        with opaque_block("pack"):
            with I.serial(I.floordiv(self.n, self.kr)) as step, opaque_block("key"):
                rows(step, self.kr)
            if self.kr > 1:
                left = materialise(I.floormod(self.n, self.kr))
                last = materialise(I.floordiv(self.n, self.kr))
                with I.If(left > 0), I.Then():
                    choose(left, range(1, self.kr), lambda valid: rows(last, valid))

    def add_up(self) -> None:
        """Adds up the elements of each column."""
        self.sums = I.sblock_alloc_buffer((self.columns,), "int32", align=64)

        def panel(start: Expr | int, width: int) -> None:
            for j in range(width):
                self._add_up(
                    start + j,
                    self.steps,
                    lambda step, j=j: self._start(start, width, step, j),  # type: ignore[misc]
                )

        with opaque_block("sums"):
            for_groups(self.panels, panel)
