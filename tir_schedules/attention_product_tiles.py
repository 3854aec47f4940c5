"""The register tiles of the probabilities times v, and the store of the result."""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vectors import Expr, ramp, splat

from .attention_problem import AttentionProblem
from .attention_score_tiles import KeyBlock
from .attention_softmax import Band, Quantization, Running
from .batch_operands import PackedOperand
from .blocking import balanced
from .epilogue import Columns, Epilogue, store_vector
from .tile_loops import for_groups, store_columns
from .zero_points import Start, is_integer


class ProductTiles:
    """Emits the product of one attention.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts.
    batch : Expr
        Number of the attention.
    kernel : Microkernel
        The register tile.
    epilogue : Epilogue
        Of the product.
    v : PackedOperand
        The other operand.
    band : Band
        Where the probabilities are.
    out : buffer
        Flat view of the result.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        batch: Expr,
        kernel: Microkernel,
        epilogue: Epilogue,
        v: PackedOperand,
        band: Band,
        out: Expr,
    ) -> None:
        self.problem, self.batch, self.kernel, self.epilogue = problem, batch, kernel, epilogue
        self.v, self.band, self.out = v, band, out
        self.base = problem.base("out", batch)
        self.quantized = Quantization.of(problem.softmax) is not None
        self.lanes = kernel.lanes

    def pad(self, r: Expr) -> None:
        """Zeros for the keys that only the last step of the product has, in scalar code."""
        computed, kernel = math.ceil(self.problem.n / self.lanes) * self.lanes, self.kernel
        for key in range(computed, self.v.steps * kernel.kr):
            zero = tirx.const(0, kernel.operand_dtype)
            I.buffer_store(self.band.probabilities, zero, [r, key])

    def emit(
        self,
        row: Expr,
        rows: int,
        block: KeyBlock,
        visible: Expr | int,
        running: tuple[Running, Expr] | None,
        at: Expr,
    ) -> None:
        """The probabilities of a band times v."""
        lanes, band, kernel = self.lanes, self.band, self.kernel
        part = self.problem.product
        # Steps of a vector of keys; scalar code may have less than one, and no blocks then.
        per_vector = lanes // kernel.kr
        first_step = block.start * per_vector
        steps: Expr | int = self.v.steps
        if per_vector:
            steps = visible * per_vector
            if isinstance(steps, int) and isinstance(first_step, int):
                steps = min(steps, self.v.steps - first_step)
            elif self.v.steps % per_vector:
                steps = tirx.Min(steps, self.v.steps - first_step)
        starts = None
        if is_integer(part):
            found = Start(
                part,
                kernel,
                {},
                self.problem.n,
                self.v.column_sum,
                lambda r: band.sums[r] if band.sums is not None else tirx.const(0, "int32"),
            )
            starts = found if found.needed else None

        def tile(panel: Expr | int, width: int, r0: Expr | int, size: int) -> None:
            with I.sblock("product"):
                I.reads()
                I.writes()

                def init(i: int, j: int) -> Expr:
                    columns = ramp((panel + j) * lanes, lanes)
                    if running is not None:
                        factor = splat(running[0].factors[at + r0 + i], lanes)
                        return running[1][at + r0 + i, columns] * factor
                    assert starts is not None
                    return starts(r0 + i, panel + j)

                result = kernel.emit(
                    size,
                    width,
                    (steps,),
                    lambda i, ks: kernel.spread(
                        band.probabilities[r0 + i, ramp(ks[0] * kernel.kr, kernel.kr)]
                    ),
                    lambda j, ks: self.v.load(panel, width, first_step + ks[0], j),
                    init if running is not None or starts is not None else None,
                )
                for i in range(size):
                    for j in range(width):
                        value = result.value(i, j)
                        if running is not None:
                            columns = ramp((panel + j) * lanes, lanes)
                            I.buffer_store(running[1], value, [at + r0 + i, columns])
                            continue
                        if not self.quantized:
                            value = value * splat(band.inverse[r0 + i], lanes)
                        self.store(row + r0 + i, panel + j, value, j == width - 1)

        for_groups(
            self.v.panels,
            lambda panel, width: for_groups(
                balanced(rows, kernel.mr), lambda r, size: tile(panel, width, r, size)
            ),
        )

    def store(self, row: Expr, vector: Expr, value: Expr, last: bool) -> None:
        """The product's epilogue, and the store."""
        problem = self.problem
        flat = self.batch * problem.m + row

        def store(columns: Columns) -> None:
            start = problem.element("out", self.base, row, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            finished = self.epilogue(value, flat, columns)
            store_vector(self.out, finished, [], place)

        store_columns(problem.e, self.lanes, vector, last, store)
