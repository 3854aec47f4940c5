"""Zero points of attention of 8-bit integers over any number of keys."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.softmax import Band
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region
from tir_schedules.product.activations import Activations
from tir_schedules.product.open_operand import OpenOperand
from tir_schedules.product.zero_points import Start, ZeroPoints

from .packed_values import PackedValues


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
