"""Attention of many queries whose numbers are known at run time only.

pack k and v: panels of whole vectors, the last key repeated behind the last
for each band of queries, as many as a register tile has
    scores = q k^T            code for some heights of a tile, chosen by a branch
    scale, mask, maximum      row by row, from L1
    softmax                   as `tiled.softmax`
    out = scores v            code for these heights, then one epilogue for all

All keys of a band are in cache at once. Keys behind the last have scores of -inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, bind, materialise
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.problem import AttentionProblem, NextRows, columns_are_contiguous
from tir_schedules.attention.tiled.rows import Matrix
from tir_schedules.attention.tiled.softmax import Band, Quantization, SoftmaxRows
from tir_schedules.core.blocking import balanced, tail_heights
from tir_schedules.core.emission import ceil_div, choose, for_tiles, opaque_block, share_of
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector
from tir_schedules.product.activations import Activations
from tir_schedules.product.open_operand import OpenOperand
from tir_schedules.product.packed_operand import StoredOperand

from .product import OpenIntegers, OpenProduct, PackedValues
from .scores import KeyMask, OpenScores, key_mask_form


@dataclass
class OpenMany:
    """Emits single tasks.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    config : AttentionConfig
        Kernels and widths of panels, and into how many tasks queries are cut.
    isa : Isa
        What the target has.
    buffers : dict
        "q", "k", "v", "out": flat views of the parameters.
    scores_epilogue, product_epilogue : Epilogue
        With the operands' parameters.
    group : int
        Attentions that share a k and a v.
    least : int
        No attention has fewer queries, but for none.
    """

    problem: AttentionProblem
    config: AttentionConfig
    isa: Isa
    buffers: dict[str, Expr]
    scores_epilogue: Epilogue
    product_epilogue: Epilogue
    group: int
    least: int = 1

    def begin(self) -> None:
        """What all tasks need."""
        problem, self.lanes = self.problem, self.isa.f32_lanes
        self.scores_kernel, self.product_kernel = kernels_of(self.config)
        self.height = min(self.scores_kernel.mr, self.product_kernel.mr)
        self.types = {name: tensor.dtype for name, tensor in problem.tensors.items()}
        self.m, self.n = as_expr(extent(problem.m)), materialise(problem.keys)
        self.keys = materialise(ceil_div(self.n, self.lanes))
        self.pitch = materialise((self.keys + 1) * self.lanes)
        self.out_vectors = math.ceil(problem.e / self.lanes)
        if self.config.prefetch:
            self.next_rows = NextRows(problem, self.buffers)
            sizes = [as_expr(extent(tensor.size)) for tensor in problem.tensors.values()]
            self.is_much = materialise(sum(sizes[1:], sizes[0])) >= self.config.prefetch_elements

    def emit(self, task: Expr) -> None:
        """One task: an attention, or those that share a k and a v, or one of the shares of them."""
        problem, shares, group = self.problem, self.config.row_shares, self.group
        number = task if shares == 1 else bind(I.floordiv(task, shares))
        part = tirx.const(0, "int32") if shares == 1 else I.floormod(task, shares)
        row, rows = share_of(self.m, part, shares)
        if self.config.prefetch:
            last = as_expr(extent(problem.batches)) - group
            self.next_rows.begin(materialise(tirx.Min((number + 1) * group, last)))
        self._task(number, group, row, rows)

    def _task(self, number: Expr, group: int, row: Expr, rows: Expr) -> None:
        """Some queries of the attentions that share a k and a v."""
        first = number if group == 1 else bind(number * group)
        problem, config = self.problem, self.config
        k_base, v_base = (materialise(problem.base(name, first)) for name in "kv")
        room = allocated(problem.n)
        scores_kernel, product_kernel, types = self.scores_kernel, self.product_kernel, self.types
        keys = StoredOperand(
            self.buffers["k"],
            types["k"],
            problem.d,
            self.n,
            lambda d, key: [problem.element("k", k_base, key, d)],
            "steps",
        )
        k_room = (problem.d, room)
        k = OpenOperand(keys, scores_kernel, config.score_vectors, self.keys, k_room)
        k.pack()
        panels = balanced(self.out_vectors, config.product_vectors)
        values = StoredOperand(
            self.buffers["v"],
            types["v"],
            self.n,
            problem.e,
            lambda key, e: [problem.element("v", v_base, key, e)],
            "columns",
        )
        v = PackedValues(values, product_kernel, panels, room)
        v.pack()
        integers = OpenIntegers(problem, scores_kernel, product_kernel)
        integers.add_up(k, v)
        queries = self._queries(integers)
        maximum, inverse = (I.sblock_alloc_buffer((self.height,), "float32") for _ in range(2))
        scores = self._held("float32", room)
        probabilities = scores
        if product_kernel.a_dtype != "float32":
            probabilities = self._held(product_kernel.operand_dtype, room)
        sums = None
        if integers.needs_sums_of_probabilities:
            sums = I.sblock_alloc_buffer((self.height,), "int32")
        band = Band(scores, self.keys * self.lanes, maximum, probabilities, inverse, sums)
        result = I.sblock_alloc_buffer(
            (self.height, self.out_vectors * self.lanes), product_kernel.acc_dtype, align=64
        )
        form = key_mask_form(problem.scores)
        mask = None
        if form is not None:
            mask = KeyMask(form, self.scores_epilogue, self.lanes, self.n, room)
        scale = None if mask is None else mask.scale
        quantization = Quantization.of(problem.softmax, product_kernel)
        self.softmax = SoftmaxRows(self.isa, product_kernel, band, quantization, scale, tails=True)
        sizes = (self.m, self.n, self.keys)
        self.scores = OpenScores(
            problem,
            scores_kernel,
            config.score_vectors,
            self.scores_epilogue,
            *sizes,
            queries,
            k,
            integers,
            band,
            mask,
            self.height,
        )
        self.product = OpenProduct(
            problem,
            product_kernel,
            self.product_epilogue,
            *sizes,
            v,
            integers,
            band,
            result,
            self.buffers["out"],
        )
        if group == 1:
            self._attend(first, row, rows)
            return
        with I.serial(group) as member, opaque_block("member"):
            self._attend(bind(first + member), row, rows)

    def _held(self, dtype: str, room: Expr | int) -> Matrix:
        """Rows of a band with an element for each key, and a vector more."""
        pitch = (ceil_div(room, self.lanes) + 1) * self.lanes
        held = I.sblock_alloc_buffer((self.height * pitch,), dtype, align=64)
        return Matrix(held, self.pitch)

    def _queries(self, integers: OpenIntegers) -> Activations:
        """q as the kernel reads it; it begins anew with each band."""
        problem, kernel = self.problem, self.scores_kernel
        q, dtype = self.buffers["q"], problem.tensors["q"].dtype

        def read(row: Expr, columns: Columns) -> Expr:
            start = problem.element("q", self.q_base, row, columns.start)
            if columns.lanes == 1:
                return q[start]
            return load_vector(q, dtype, [], Columns(start, columns.lanes, columns.valid))

        return Activations(
            kernel,
            dtype,
            problem.d,
            self.height,
            read,
            contiguous=columns_are_contiguous(problem.layouts["q"], problem.d),
            sums=integers.needs_sums_of_queries,
        )

    def _attend(self, batch: Expr, row: Expr, rows: Expr) -> None:
        """The queries of one attention, band by band."""
        self.q_base = materialise(self.problem.base("q", batch))
        product, out_base = self.product, materialise(self.problem.base("out", batch))
        multiply = product.multiply
        least = self.least if self.config.row_shares == 1 else 1  # a share may be a single query
        heights = tail_heights(self.height, self.config.score_vectors, least)
        if self.scores.mask is not None:
            self.scores.mask.begin(bind(batch * self.m))

        def after(start: Expr, height: Expr) -> None:
            first = bind(row + start)
            if self.scores.mask is None:
                with I.serial(height) as r, opaque_block("finish"):
                    self.scores.finish(batch, first, r)
            self.softmax.emit(height, self.keys, self.n, lambda r: self._beside(first + r, r))
            choose(height, heights.heights, multiply)
            with I.serial(height) as r, opaque_block("store"):
                product.store(batch, out_base, first, r)

        for_tiles(
            rows,
            heights,
            lambda start, height: self.scores.multiply(bind(row + start), height),
            after,
        )

    def _beside(self, row: Expr, r: Expr) -> None:
        """What is done beside the softmax of a row."""
        self.product.pad(r)
        if self.config.prefetch:
            with I.If(self.is_much), I.Then():
                self.next_rows.fetch_open(row)
