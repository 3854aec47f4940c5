"""Attention of few queries, as in decoding with a KV cache: the time is that of reading K and V.

    scores[r, n] = epilogue(sum over d of q[r, d] * k[n, d])     rows r: queries of a group of heads
    p            = epilogue(softmax(scores))
    out[r, e]    = epilogue(sum over n of p[r, n] * v[n, e])

K and V are read where they are stored, once, and nothing is packed (`skinny_product`). The rows of
scores stay in cache. One task for each K and V or, if these are fewer than the threads and long,
for each share of their keys: then every share has its own maximum and its own sums, which are
merged in the end (Dao et al., "Flash-Decoding for long-context inference", 2023). All shares know
the sum of the whole row before the probabilities are rounded, so that sharing changes no rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.exp2 import exp2
from microkernels.isa import Isa
from microkernels.microkernel import kernels_for
from microkernels.vectors import Expr, bind, constant, element_of, like, parameter, ramp, splat

from .attention_problem import AttentionProblem, columns_are_contiguous, flat_view
from .epilogue import Columns, Epilogue, store_vector
from .machine import Machine
from .normalize_rows import LOWEST
from .quantize_steps import RANGES
from .reduce_lanes import reduce_lanes, settle
from .region import Region
from .skinny_product import ColumnSums, Operands, dots
from .softmax_exp import exp_of_difference

MOST_QUERIES = 4  # more are worth packing K and V
MOST_ROWS = 32
PARALLEL_BYTES = 96 << 10  # of K and V: less is read while threads fork and join
SHARE_KEYS = 512  # fewer keys are not worth two more joins
_SHIFT = 128


class DecodeConfig(Protocol):
    """The numbers that `build_decode` reads."""

    @property
    def parallel(self) -> bool:
        """Whether tasks run on all threads."""

    @property
    def key_shares(self) -> int:
        """Tasks that the keys of one K are cut into."""


def fits(region: Region) -> bool:
    """Whether few rows share each K and V, and these can be read where they are stored."""
    problem = AttentionProblem(region)
    if problem.m > MOST_QUERIES or problem.m * problem.group > MOST_ROWS:
        return False
    k, v, out = (problem.layouts[name] for name in ("k", "v", "out"))
    reads_k = columns_are_contiguous(k, problem.d) or k.row == 1
    columns = columns_are_contiguous(v, problem.e) and columns_are_contiguous(out, problem.e)
    return reads_k and columns


def default_shares(region: Region, machine: Machine) -> tuple[bool, int]:
    """`parallel` and `key_shares` of the default configuration."""
    problem = AttentionProblem(region)
    tasks = problem.batches // problem.group
    size = sum(_bits(problem.tensors[name].dtype) for name in "kv") // 8
    read = tasks * problem.n * (problem.d + problem.e) * size // 2
    if machine.threads == 1 or read < PARALLEL_BYTES:
        return False, 1
    if tasks >= machine.threads:
        return True, 1
    shares = min(math.ceil(machine.threads / tasks), problem.n // SHARE_KEYS)
    return tasks > 1 or shares > 1, max(1, shares)


def build_decode(region: Region, config: DecodeConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: q, k, v, operands, output."""
    problem = AttentionProblem(region)
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("attention_decode")
        I.func_attr({"tirx.noalias": True})
        names = ("Q", "K", "V", *(f"operand{i}" for i in range(len(region.inputs) - 3)))
        inputs = [
            parameter(name, tensor.shape, tensor.dtype)
            for name, tensor in zip(names, region.inputs, strict=True)
        ]
        out = parameter("O", region.output.shape, region.output.dtype)
        # Beside the bfloat16 kernel f32 is narrowed by an instruction; its family brings that.
        half = kernels_for(isa, "bfloat16", "bfloat16")[0]
        functions = I.attr(0, "pragma_import_llvm", half.llvm_ir) if half.llvm_ir else nullcontext()
        with functions:
            decode = _Decode(problem, isa, config, inputs, out, half.narrow)
            decode.emit(config.parallel)
    return builder.get()


class _Decode:
    """The three phases of the kernel: scores, products with V, merging and storing.

    A slot is what one K and V leave behind between the phases; without shares there is one for each
    task, on its own stack.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        isa: Isa,
        config: DecodeConfig,
        inputs: list[Expr],
        out: Expr,
        narrow: Callable[[Expr], Expr],
    ) -> None:
        self.problem, self.isa, self.lanes = problem, isa, isa.f32_lanes
        self.tasks = problem.batches // problem.group
        self.rows = problem.group * problem.m
        # Keys that no query sees are never read.
        hidden_from = problem.m + problem.causal if problem.causal is not None else problem.n
        self.n = min(problem.n, max(1, hidden_from))
        self.vectors = math.ceil(self.n / self.lanes)
        self.per_share = math.ceil(self.vectors / max(1, min(config.key_shares, self.vectors)))
        self.shares = math.ceil(self.vectors / self.per_share)
        first = len(problem.scores.operands) + 3
        tensors = problem.tensors
        self.q, self.k, self.v, self.out = (
            flat_view(buffer, tensors[name])
            for buffer, name in zip((*inputs[:3], out), ("q", "k", "v", "out"), strict=True)
        )
        self.scores_epilogue = Epilogue(problem.scores, inputs[3:first], narrow)
        self.softmax_epilogue = Epilogue(problem.softmax, (), narrow)
        self.product_epilogue = Epilogue(problem.product, inputs[first:], narrow)
        self.p_dtype = problem.softmax.output.dtype
        self.q_points = _points(problem.scores, problem.tensors["q"].dtype, tensors["k"].dtype)
        self.p_points = _points(problem.product, self.p_dtype, tensors["v"].dtype)
        self.first = Operands(
            isa, tensors["k"].dtype, "rounded" in problem.scores.attrs, self.q_points[0], narrow
        )
        self.second = Operands(
            isa, tensors["v"].dtype, "rounded" in problem.product.attrs, self.p_points[0], narrow
        )
        # A row of ones adds up the columns of the matrix.
        self.sums = ColumnSums(self.second, self.rows + (self.p_points[1] != 0), problem.e)
        # The exponentials themselves are multiplied with V if nothing is rounded before.
        self.deferred = (
            self.p_dtype == self.second.row_element == "float32"
            and not problem.softmax.epilogue
            and not self.second.rounded
        )

    # --- tasks -----------------------------------------------------------------------------------

    def emit(self, parallel: bool) -> None:
        """The whole kernel."""
        if self.shares == 1:
            with _loop(self.tasks, parallel) as task, I.sblock("task"):
                I.reads()
                I.writes()
                self._allocate(1)
                slot, share = tirx.const(0, "int32"), tirx.const(0, "int32")
                self._scores(task, slot, share)
                self._products(task, slot, share)
                self._merge(task, slot)
            return
        with I.sblock("decode"):
            I.reads()
            I.writes()
            self._allocate(self.tasks)
            for phase in (self._scores, self._products):
                with _loop(self.tasks * self.shares, parallel) as item, I.sblock("share"):
                    I.reads()
                    I.writes()
                    task = bind(I.floordiv(item, self.shares))
                    phase(task, task, bind(I.floormod(item, self.shares)))
            with _loop(self.tasks, parallel) as task, I.sblock("merge"):
                I.reads()
                I.writes()
                self._merge(task, task)

    def _allocate(self, slots: int) -> None:
        rows, shares = self.rows, self.shares
        self.pitch = self.vectors * self.lanes
        self.scores = I.sblock_alloc_buffer((slots * rows * self.pitch,), "float32", align=64)
        self.largest = I.sblock_alloc_buffer((slots * shares * rows,), "float32")
        self.totals = I.sblock_alloc_buffer((slots * shares * rows,), "float32")
        self.row_sums = I.sblock_alloc_buffer((slots * shares * rows,), "int32")
        size = slots * shares * self.sums.rows * self.sums.width
        self.partial = I.sblock_alloc_buffer((size,), self.second.kernel.acc_dtype, align=64)

    def _share(self, share: Expr) -> tuple[Expr, Expr | int]:
        """First vector of keys of a share, and how many of its vectors are whole."""
        whole = self.n // self.lanes
        if self.shares == 1:
            return share, whole
        start = bind(share * self.per_share)
        return start, bind(tirx.Min(tirx.const(self.per_share, "int32"), whole - start))

    def _if_last(self, share: Expr, body: Callable[[], None]) -> None:
        """Emits what only the last share has to do."""
        if self.shares == 1:
            body()
            return
        with I.If(share == self.shares - 1), I.Then():
            body()

    def _for_vectors(self, share: Expr, body: Callable[[Expr, int], None]) -> None:
        """Runs `body(vector, keys in it)` for the vectors of keys of a share."""
        start, count = self._share(share)
        if not (isinstance(count, int) and count == 0):
            with I.serial(count) as vector:
                body(start + vector, self.lanes)
        cut = self.n % self.lanes
        if cut:
            self._if_last(share, lambda: body(tirx.const(self.n // self.lanes, "int32"), cut))

    # --- scores ----------------------------------------------------------------------------------

    def _scores(self, task: Expr, slot: Expr, share: Expr) -> None:
        """Scores of one share, their largest, exponentials and the sum of these."""
        problem, lanes, rows = self.problem, self.lanes, self.rows
        operands = self.first
        width = math.ceil(problem.d / operands.group) * operands.group
        with_ones = self.q_points[1] != 0
        q = I.sblock_alloc_buffer(((rows + with_ones) * width,), operands.row_element, align=64)
        self._load_queries(task, q, width)
        sums = None
        if self.q_points[2]:
            sums = I.sblock_alloc_buffer((rows,), "int32")
            with I.serial(rows) as r:
                total = operands.row_sum(q, r * width, width // operands.group)
                I.buffer_store(sums, total, [r])
        largest = I.sblock_alloc_buffer((rows * lanes,), "float32", align=64)
        with I.serial(rows) as r:
            I.buffer_store(largest, constant(-math.inf, "float32", lanes), [ramp(r * lanes, lanes)])

        def finish(r: Expr, value: Expr, of_ones: Expr | None, vector: Expr, valid: int) -> None:
            row_sum = None if sums is None else sums[r]
            value = _corrected(value, self.q_points, problem.d, of_ones, row_sum)
            columns = Columns(vector * lanes, lanes, valid)
            score = self.scores_epilogue(value, task * rows + r, columns)
            keys = ramp(vector * lanes, lanes)
            hidden = like(-math.inf, score)
            if problem.causal is not None and problem.m > 1:
                last = I.floormod(r, problem.m) + problem.causal
                score = tirx.Select(tirx.LE(keys, splat(last, lanes)), score, hidden)
            elif problem.causal is not None and problem.causal < 0:
                score = hidden
            if columns.mask is not None:
                score = tirx.Select(columns.mask, score, hidden)
            score = settle(score)
            index = ramp((slot * rows + r) * self.pitch + vector * lanes, lanes)
            I.buffer_store(self.scores, score, [index])
            place = ramp(r * lanes, lanes)
            I.buffer_store(largest, tirx.Max(largest[place], score), [place])

        layout = problem.layouts["k"]
        k_base = bind(problem.base("k", task * problem.group))
        if columns_are_contiguous(layout, problem.d):
            self._scores_by_dots(share, q, width, k_base, finish)
        else:
            self._scores_by_columns(share, q, width, k_base, finish)
        with I.serial(rows) as r:
            self._exponentials(slot, share, r, largest)

    def _load_queries(self, task: Expr, q: Expr, width: int) -> None:
        """The rows of q as they are multiplied, padded with zeros."""
        problem, operands, rows = self.problem, self.first, self.rows
        layout = problem.layouts["q"]
        group = operands.group
        dtype = problem.tensors["q"].dtype
        with I.serial(rows) as r:
            batch = task * problem.group + I.floordiv(r, problem.m)
            base = bind(problem.base("q", batch) + I.floormod(r, problem.m) * layout.row)
            for start in range(0, width, group):
                valid = min(group, problem.d - start)
                if columns_are_contiguous(layout, problem.d):
                    value = operands.load(self.q, base + start, valid, group, rows=True)
                    I.buffer_store(q, value, [ramp(r * width + start, group)])
                    continue
                zero = constant(0, operands.row_element, group)
                I.buffer_store(q, zero, [ramp(r * width + start, group)])
                with I.serial(valid) as i:
                    value = self.q[base + (start + i) * layout.column]
                    value = operands.convert(value, dtype, operands.row_element)
                    I.buffer_store(q, value, [r * width + start + i])
        if self.q_points[1]:
            one = tirx.const(1, operands.row_element)
            with I.serial(problem.d) as i:
                I.buffer_store(q, one, [rows * width + i])
            if width > problem.d:
                with I.serial(width - problem.d) as i:
                    I.buffer_store(q, one - one, [rows * width + problem.d + i])

    def _scores_by_dots(
        self, share: Expr, q: Expr, width: int, k_base: Expr, finish: Callable[..., None]
    ) -> None:
        """Keys stored with their elements next to each other."""
        problem, operands, lanes = self.problem, self.first, self.lanes
        stride = problem.layouts["k"].row

        def block(vector: Expr, valid: int) -> None:
            base = bind(k_base + vector * (lanes * stride))

            def product(r: Expr | int) -> Expr:
                return dots(
                    operands,
                    problem.d,
                    valid,
                    lambda g: q[ramp(r * width + g * operands.group, operands.group)],
                    lambda key, g, exist: operands.load(
                        self.k, base + (g * operands.group + key * stride), exist, operands.group
                    ),
                )

            of_ones = settle(product(self.rows)) if self.q_points[1] else None
            with I.serial(self.rows) as r:
                finish(r, product(r), of_ones, vector, valid)

        self._for_vectors(share, block)

    def _scores_by_columns(
        self, share: Expr, q: Expr, width: int, k_base: Expr, finish: Callable[..., None]
    ) -> None:
        """Keys stored next to each other: blocks of them are columns of a product."""
        problem, operands, lanes = self.problem, self.first, self.lanes
        stride, kr = problem.layouts["k"].column, operands.kr
        rows = self.rows + (self.q_points[1] != 0)
        widest = max(1, 64 // operands.group) * operands.kr

        def block(vector: Expr, vectors: int, keys: int) -> None:
            sums = ColumnSums(operands, rows, keys)
            buffer = I.sblock_alloc_buffer((rows * sums.width,), operands.kernel.acc_dtype)
            zero = tirx.const(0, "int32")
            sums.clear(buffer, zero)
            sums.add(
                buffer,
                zero,
                problem.d // kr,
                problem.d % kr,
                lambda r, step: operands.spread(q[ramp(r * width + step * kr, kr)]),
                lambda d, column, exist: operands.load(
                    self.k, k_base + (vector * lanes + column) + d * stride, exist, operands.group
                ),
            )
            for j in range(vectors):
                of_ones = sums.vector(buffer, zero, self.rows, j) if self.q_points[1] else None
                valid = min(lanes, keys - j * lanes)
                with I.serial(self.rows) as r:
                    finish(r, sums.vector(buffer, zero, r, j), of_ones, vector + j, valid)

        start, count = self._share(share)
        if isinstance(count, int):
            blocks, left = divmod(count, widest)
            if blocks:
                with I.serial(blocks) as i:
                    block(start + i * widest, widest, widest * lanes)
            tail = left * lanes + self.n % lanes
            if tail:
                block(start + blocks * widest, math.ceil(tail / lanes), tail)
            return
        self._for_vectors(share, lambda vector, valid: block(vector, 1, valid))

    def _exponentials(self, slot: Expr, share: Expr, r: Expr, largest: Expr) -> None:
        """exp(score - largest) of a row's share, in place, and their sum."""
        lanes = self.lanes
        at = (slot * self.shares + share) * self.rows + r
        high = reduce_lanes(largest[ramp(r * lanes, lanes)], tirx.Max)
        # Finite, so that scores of -inf count nothing; a row of nothing else gives 0 / 0.
        base = settle(tirx.Max(high, tirx.const(LOWEST, "float32")))
        I.buffer_store(self.largest, base, [at])
        total = I.sblock_alloc_buffer((lanes,), "float32")
        every = ramp(0, lanes)
        I.buffer_store(total, constant(0, "float32", lanes), [every])

        def step(vector: Expr, _valid: int) -> None:
            index = ramp((slot * self.rows + r) * self.pitch + vector * lanes, lanes)
            value = settle(self._power(self.scores[index] - splat(base, lanes)))
            I.buffer_store(self.scores, value, [index])
            I.buffer_store(total, total[every] + value, [every])

        self._for_vectors(share, step)
        I.buffer_store(self.totals, reduce_lanes(total[every], lambda a, b: a + b), [at])

    def _power(self, x: Expr) -> Expr:
        """e^x for x <= 0."""
        if self.lanes == 16 and element_of(x) == "float32" and int(x.ty.dtype.lanes) == 16:
            short = self.p_dtype in RANGES
            return exp2(x * like(math.log2(math.e), x), self.isa, short)
        return exp_of_difference(bind(x))

    # --- products with V -------------------------------------------------------------------------

    def _total(self, slot: Expr, r: Expr) -> tuple[Expr, Expr]:
        """Largest score and sum of exponentials of a whole row."""
        at = slot * self.shares * self.rows + r
        if self.shares == 1:
            return self.largest[at], self.totals[at]
        found = I.sblock_alloc_buffer((2,), "float32")
        I.buffer_store(found, tirx.const(LOWEST, "float32"), [0])
        I.buffer_store(found, tirx.const(0, "float32"), [1])
        with I.serial(self.shares) as share:
            I.buffer_store(found, tirx.Max(found[0], self.largest[at + share * self.rows]), [0])
        with I.serial(self.shares) as share:
            place = at + share * self.rows
            weight = self._power(self.largest[place] - found[0])
            I.buffer_store(found, found[1] + weight * self.totals[place], [1])
        return bind(found[0]), bind(found[1])

    def _products(self, task: Expr, slot: Expr, share: Expr) -> None:
        """Probabilities of one share, and their products with V."""
        problem, operands, rows = self.problem, self.second, self.rows
        kr = operands.kr
        start, count = self._share(share)
        layout = problem.layouts["v"]
        first_key = start * self.lanes
        v_base = bind(problem.base("v", task * problem.group) + first_key * layout.row)
        if self.deferred:
            p, pitch = self.scores, self.pitch
            first = slot * rows * pitch + first_key
        else:
            pitch = self.per_share * self.lanes
            pitch = math.ceil(pitch / operands.group) * operands.group
            p = I.sblock_alloc_buffer((self.sums.rows * pitch,), operands.row_element, align=64)
            first = tirx.const(0, "int32")
            self._probabilities(task, slot, share, p, pitch)
        into = slot * self.shares + share
        self.sums.clear(self.partial, into)

        def add(rest: int) -> None:
            self.sums.add(
                self.partial,
                into,
                steps(rest),
                rest % kr,
                lambda r, step: operands.spread(p[ramp(first + r * pitch + step * kr, kr)]),
                lambda key, column, exist: operands.load(
                    self.v, v_base + key * layout.row + column, exist, operands.group
                ),
            )

        def steps(rest: int) -> Expr | int:
            return count * (self.lanes // kr) + rest // kr

        cut = self.n % self.lanes
        if self.shares == 1 or not cut:
            add(cut)
            return
        with I.If(share == self.shares - 1):
            with I.Then():
                add(cut)
            with I.Else():
                add(0)

    def _probabilities(self, task: Expr, slot: Expr, share: Expr, p: Expr, pitch: int) -> None:
        """What a share multiplies with V, zeros behind it, and the sums of its integers."""
        operands, rows, lanes = self.second, self.rows, self.lanes
        start, _count = self._share(share)
        zeros = constant(0, operands.row_element, lanes)
        one = tirx.const(1, operands.row_element)
        used = self.per_share * lanes
        with I.serial(rows) as r:
            at = (slot * self.shares + share) * rows + r
            high, total = self._total(slot, r)
            factor = tirx.const(1, "float32") / total
            if self.shares > 1:
                factor = self._power(self.largest[at] - high) * factor
            factor = settle(factor)
            if pitch > used or self.shares > 1:
                with I.serial(pitch // lanes) as i:
                    I.buffer_store(p, zeros, [ramp(r * pitch + i * lanes, lanes)])

            def step(vector: Expr, valid: int) -> None:
                index = ramp((slot * rows + r) * self.pitch + vector * lanes, lanes)
                columns = Columns(vector * lanes, lanes, valid)
                value = bind(self.scores[index] * splat(factor, lanes))
                value = self.softmax_epilogue(value, task * rows + r, columns)
                value = operands.convert(value, self.p_dtype, operands.row_element)
                if columns.mask is not None:
                    value = tirx.Select(columns.mask, value, zeros)
                I.buffer_store(p, value, [ramp(r * pitch + (vector - start) * lanes, lanes)])

            self._for_vectors(share, step)
            if self.p_points[2]:
                total = operands.row_sum(p, r * pitch, pitch // operands.group)
                I.buffer_store(self.row_sums, total, [at])
        if self.p_points[1]:
            with I.serial(pitch) as i:
                I.buffer_store(p, one, [rows * pitch + i])

    # --- the result ------------------------------------------------------------------------------

    def _merge(self, task: Expr, slot: Expr) -> None:
        """The shares' products added up, the epilogue, and the result."""
        problem, lanes, rows = self.problem, self.lanes, self.rows
        layout = problem.layouts["out"]
        zero = slot * self.shares
        if self.shares > 1:
            self._add_shares(slot)
        with I.serial(rows) as r:
            batch = task * problem.group + I.floordiv(r, problem.m)
            base = bind(problem.base("out", batch) + I.floormod(r, problem.m) * layout.row)
            row_sum, scale = None, None
            if self.p_points[2]:
                row_sum = self.row_sums[zero * rows + r]
            if self.deferred:
                scale = settle(tirx.const(1, "float32") / self._total(slot, r)[1])
            for j in range(math.ceil(problem.e / lanes)):
                columns = Columns(j * lanes, lanes, min(lanes, problem.e - j * lanes))
                value = self.sums.vector(self.partial, zero, r, j)
                of_ones = None
                if self.p_points[1]:
                    of_ones = self.sums.vector(self.partial, zero, rows, j)
                value = _corrected(value, self.p_points, self.n, of_ones, row_sum)
                if scale is not None:
                    value = value * splat(scale, lanes)
                value = self.product_epilogue(bind(value), task * rows + r, columns)
                place = Columns(base + j * lanes, lanes, columns.valid)
                store_vector(self.out, value, (), place)

    def _add_shares(self, slot: Expr) -> None:
        """Adds the products of all shares to those of the first, weighted where they are not yet.

        A share's exponentials are those of differences to its own maximum.
        """
        lanes, rows, width = self.lanes, self.rows, self.sums.width
        first = slot * self.shares
        with I.serial(self.sums.rows) as r:
            highest = self._total(slot, r)[0] if self.deferred else None
            with I.serial(self.shares) as share:
                weight = None
                if highest is not None:
                    own = self.largest[(first + share) * rows + r]
                    weight = settle(self._power(own - highest))
                with I.serial(width // lanes) as j:
                    source = ((first + share) * self.sums.rows + r) * width + j * lanes
                    goal = ramp((first * self.sums.rows + r) * width + j * lanes, lanes)
                    value = self.partial[ramp(source, lanes)]
                    if weight is not None:
                        value = value * splat(weight, lanes)
                    before = tirx.Select(
                        splat(share > 0, lanes), self.partial[goal], like(0, value)
                    )
                    I.buffer_store(self.partial, before + value, [goal])
        if self.p_points[2]:
            with I.serial(self.shares - 1) as share, I.serial(rows) as r:
                total = self.row_sums[first * rows + r]
                total = total + self.row_sums[(first + share + 1) * rows + r]
                I.buffer_store(self.row_sums, total, [first * rows + r])


def _loop(count: int, parallel: bool) -> AbstractContextManager[Expr]:
    """A loop over tasks."""
    return I.parallel(count) if parallel and count > 1 else I.serial(count)


def _bits(dtype: str) -> int:
    return {"float32": 32, "bfloat16": 16}.get(dtype, 8)


def _points(part: Region, rows_dtype: str, matrix_dtype: str) -> tuple[bool, int, int]:
    """Whether the rows are the unsigned factor, and both zero points, shifted as the factors are.

    The kernels multiply u8 by s8. The rows' type is chosen such that their zero point becomes 0 if
    it can: then nobody has to add up the columns of the matrix.
    """
    if matrix_dtype not in RANGES:
        return True, 0, 0
    rows, matrix = (int(part.attrs.get(f"{name}_zero_point", 0)) for name in "ab")
    unsigned_point = rows + (_SHIFT if rows_dtype == "int8" else 0)
    unsigned = unsigned_point == 0 or (rows_dtype == "uint8" and rows != _SHIFT)
    point = unsigned_point if unsigned else unsigned_point - _SHIFT
    shifted = matrix + (_SHIFT if matrix_dtype == "int8" else 0)
    return unsigned, point, shifted - _SHIFT if unsigned else shifted


def _corrected(
    value: Expr, points: tuple[bool, int, int], k: int, of_ones: Expr | None, row_sum: Expr | None
) -> Expr:
    """sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + k za zb, for int32 lanes."""
    _unsigned, a, b = points
    if of_ones is not None:
        value = value - of_ones * like(a, value)
    if row_sum is not None:
        shift = row_sum * tirx.const(b, "int32") - tirx.const(k * a * b, "int32")
        value = value - splat(shift, int(value.ty.dtype.lanes))
    return bind(value)
