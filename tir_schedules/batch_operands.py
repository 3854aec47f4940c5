"""The operands of batch_matmul: logical shapes, where elements are stored, packing of B."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.transpose import transpose_block
from microkernels.vectors import Expr, bind, constant, ramp

from .blocking import balanced
from .epilogue import Columns, load_vector
from .region import Region, Tensor
from .tile_loops import for_groups, store_columns


def parse_axes(region: Region, name: str, rank: int) -> list[int]:
    """An axes attribute as numbers; the identity if it is absent."""
    text = str(region.attrs.get(name, "")) or ",".join(map(str, range(rank)))
    return [int(axis) for axis in text.split(",")]


class BatchProblem:
    """Logical shapes of a region: batches over which B varies, rows, columns, K."""

    def __init__(self, region: Region) -> None:
        self.region = region
        a, b = region.inputs
        self.a_axes = parse_axes(region, "a_axes", len(a.shape))
        self.b_axes = parse_axes(region, "b_axes", len(b.shape))
        self.out_axes = parse_axes(region, "out_axes", len(region.output.shape))
        self.a_shape = [a.shape[axis] for axis in self.a_axes]
        self.b_shape = [b.shape[axis] for axis in self.b_axes]
        self.n, self.k = self.b_shape[-1], self.b_shape[-2]
        self.batch_shape = list(region.output.shape[:-2])
        # With one B for all batches they are only more rows.
        self.shared = all(extent == 1 for extent in self.b_shape[:-2])
        self.batches = 1 if self.shared else math.prod(self.batch_shape)
        self.m = math.prod(region.output.shape[:-1]) // self.batches

    def stored(self, axes: Sequence[int], shape: Sequence[int], logical: list[Expr]) -> list[Expr]:
        """Index into a stored operand from a logical index of the output's rank."""
        aligned = logical[len(logical) - len(shape) :]
        index: list[Expr] = [tirx.const(0, "int32")] * len(shape)
        for axis, extent, value in zip(axes, shape, aligned, strict=True):
            index[axis] = tirx.const(0, "int32") if extent == 1 else value
        return index

    def output_tensor(self) -> Tensor:
        """The output as it is stored."""
        shape = self.region.output.shape
        return Tensor(tuple(shape[axis] for axis in self.out_axes), self.region.output.dtype)


def pack_operand(
    problem: BatchProblem,
    b: Expr,
    packed: Expr,
    batch: list[Expr],
    kernel: Microkernel,
    most_vectors: int,
) -> None:
    """Packs one batch's B into panels [N/nr][K][nr], columns padded with zeros."""
    lanes, n, k = kernel.lanes, problem.n, problem.k
    contiguous = problem.b_axes.index(len(problem.b_axes) - 1) - len(problem.b_axes)
    if problem.shared:
        batch = [tirx.const(0, "int32")] * len(problem.batch_shape)

    def element(step: Expr, column: Expr) -> list[Expr]:
        return problem.stored(problem.b_axes, problem.b_shape, [*batch, step, column])

    def put(panel: Expr, width: int, step: Expr, j: Expr | int, value: Expr) -> None:
        offset = panel * (lanes * k) + (step * width + j) * lanes
        I.buffer_store(packed, value, [ramp(offset, lanes)])

    def copy(panel: Expr, width: int, j: int, columns: Columns) -> None:
        """Columns stored next to each other: whole vectors, one step of K after the other."""
        with I.serial(k) as step:
            index = element(step, columns.start)
            put(panel, width, step, j, load_vector(b, "float32", index[:-1], columns))

    def turn(panel: Expr, width: int, j: int, columns: Columns) -> None:
        """Steps of K stored next to each other: square blocks turned in registers."""

        def block(step: Expr, valid: int) -> None:
            steps = Columns(step, lanes, valid)
            rows = [
                bind(load_vector(b, "float32", element(step, columns.start + i)[:-1], steps))
                if i < columns.valid
                else constant(0, "float32", lanes)
                for i in range(lanes)
            ]
            for i, value in enumerate(transpose_block(rows)[:valid]):
                put(panel, width, step + i, j, value)

        if k >= lanes:
            with I.serial(k // lanes) as whole:
                block(whole * lanes, lanes)
        if k % lanes:
            block(tirx.const(k - k % lanes, "int32"), k % lanes)

    def gather(panel: Expr, width: int, j: int, columns: Columns) -> None:
        """Neither is contiguous: element by element."""
        with I.serial(k) as step:
            for lane in range(lanes):
                value = (
                    b[tuple(element(step, columns.start + lane))]
                    if lane < columns.valid
                    else tirx.const(0, "float32")
                )
                offset = panel * (lanes * k) + (step * width + j) * lanes + lane
                I.buffer_store(packed, value, [offset])

    pack_vector = {-1: copy, -2: turn}.get(contiguous, gather)

    def panel(start: Expr | int, width: int) -> None:
        for j in range(width):
            emit = functools.partial(pack_vector, start, width, j)
            store_columns(n, lanes, start + j, j == width - 1, emit)

    with I.sblock("pack"):
        I.reads()
        I.writes()
        for_groups(balanced(math.ceil(n / lanes), most_vectors), panel)
