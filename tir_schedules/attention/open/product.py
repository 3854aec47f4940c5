"""The product of a band of probabilities with v, and how results are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, bind, ramp, splat
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.softmax import Band
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.group_loops import for_groups
from tir_schedules.core.integer_product import is_integer
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.product.tile_stores import store_columns

from .integers import OpenIntegers
from .packed_values import PackedValues


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
