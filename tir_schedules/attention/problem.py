"""The operands of attention: logical extents, where elements are stored, what is shared.

    scores[b, m, n] = epilogue(sum over d of q[b, m, d] * k[b, d, n])
    out[b, m, e]    = epilogue(sum over n of softmax(scores)[b, m, n] * v[b, n, e])

A merged region of three parts: a batch_matmul, a softmax and a batch_matmul. Its tensors are read
and written as they are stored: the attributes "q_strides", "k_strides", "v_strides" and
"out_strides" give one stride for each factor of the batch ("batch"), then the strides of the two
logical dimensions, in elements; "q_offset" and so on give the first element. Trailing factors along
which neither k nor v moves (grouped queries) share one packed k and v.

K and V may be stored in a narrower type than they are multiplied in, as in a cache of float16 or of
8-bit integers: elements are widened to float32 when they are read.

A sink is one more key of each query, with a score and a value of 0: a further term of the sum that
a softmax divides by. A region with "sink_strides" has the scores of its sinks as last input.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from numpy.lib.stride_tricks import as_strided
from tvm import DataType, tirx
from tvm.sym import Analyzer

from microkernels.base.arrays import RANGES
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, Index, bind, materialise
from microkernels.vector.memory import prefetch
from tir_schedules.core import attributes, emission
from tir_schedules.core.blocking import Group, cut_in_units, shares
from tir_schedules.core.extents import as_elements, as_expr, extent
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.epilogue.epilogue import unflatten

OPERANDS = ("q", "k", "v", "out")
SINK = "sink"
WIDENED = ("float16", "bfloat16", *RANGES)
"""Types of stored keys and values that may be widened to float32."""
MOST_QUERIES = 4  # more queries are worth packing K and V
MOST_ROWS = 32  # more rows that share a K and a V are worth packing them
SIDE_BYTES = 512 << 10  # of K and V: less stays in cache, whichever way it is read


@dataclass(frozen=True)
class Layout:
    """Where the elements of one operand lie: strides of the batch factors, a row and a column."""

    batch: tuple[int, ...]
    row: int
    column: int
    offset: int = 0


class AttentionProblem:
    """The extents and layouts of an attention region.

    Attributes
    ----------
    scores, softmax, product : Region
        Its parts.
    factors : tuple of int
        Factors of the batch.
    m, n, d, e : int
        Queries, keys, columns of q and k, columns of v.
    batches, group : int
        Independent attentions, and how many consecutive attentions share k and v (static).
    causal : int or None
        Key j is visible to query i if j <= i + causal; may be symbolic.
    seen : Expr or None
        Number of keys up to the last key that any query sees, if the kernel finds it at run time.
    unseen : Expr or None
        Number of keys before the first key that any query sees, if few queries skip them.
    layouts : dict
        "q" [m, d], "k" [n, d], "v" [n, e], "out" [m, e], perhaps "sink" [m, 1] -> Layout.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.scores, self.softmax, self.product = region.parts
        self.m, self.n = self.scores.output.shape[-2:]
        self.d = self.scores.inputs[0].shape[-1]
        self.e = self.product.output.shape[-1]
        self.factors = region.numbers("batch")
        self.batches = math.prod(self.factors)
        causal = region.attrs.get(attributes.CAUSAL)
        self.causal = causal if isinstance(causal, int) else None
        self.seen: Expr | None = None
        self.unseen: Expr | None = None
        self.layouts = {}
        has_sink = f"{SINK}_strides" in region.attrs
        for name in (*OPERANDS, *[SINK] * has_sink):
            *batch, row, column = region.numbers(f"{name}_strides")
            offset = region.integer(f"{name}_offset", 0)
            self.layouts[name] = Layout(tuple(batch), row, column, offset)
        self.group = 1
        for number, size in reversed(list(enumerate(self.factors))):
            moving = any(self.layouts[name].batch[number] for name in "kv")
            if isinstance(size, SymbolicSize) or (size > 1 and moving):
                break
            self.group *= size

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The stored q, k, v, result and, if there is one, sink."""
        *_, sink = inputs = self.region.inputs
        stored = dict(zip(OPERANDS, (*inputs[:3], self.region.output), strict=True))
        return stored | {SINK: sink} if SINK in self.layouts else stored

    def split(self, others: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The inputs after q, k and v: operands of the scores, of the product, and the sink."""
        first = len(self.scores.operands)
        last = first + len(self.product.operands)
        return others[:first], others[first:last], others[last:]

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products."""
        return 2 * self.batches * self.m * self.n * (self.d + self.e)

    @property
    def keys(self) -> Expr:
        """Number of keys that are multiplied."""
        n = as_expr(extent(self.n))
        return n if self.seen is None else tirx.Min(n, self.seen)

    def base(self, name: str, batch: Expr) -> Expr:
        """Where an operand of one attention begins; `batch` counts attentions."""
        layout = self.layouts[name]
        offset: Expr = tirx.const(layout.offset, "int32")
        for index, stride in zip(unflatten(batch, self.factors), layout.batch, strict=True):
            offset = offset + index * extent(stride)
        return Analyzer().simplify(offset)

    def element(self, name: str, base: Expr, row: Index, column: Index) -> Expr:
        """The index of an element, or of the first element of a vector along the columns."""
        layout = self.layouts[name]
        return base + row * extent(layout.row) + column * extent(layout.column)

    def sink(self, buffers: Mapping[str, Expr], batch: Expr, row: Index) -> Expr | None:
        """The score of a query's sink; None if there are no sinks."""
        if SINK not in self.layouts:
            return None
        return bind(buffers[SINK][self.element(SINK, self.base(SINK, batch), row, 0)])

    def reject(self) -> str | None:
        """Why extents, strides and tensors do not fit together, or None."""
        rows = {"q": self.m, "k": self.n, "v": self.n, "out": self.m, SINK: self.m}
        columns = {"q": self.d, "k": self.d, "v": self.e, "out": self.e, SINK: 1}
        if 0 in (self.m, self.n, self.d, self.e, self.batches):
            return "a dimension is 0"
        if math.prod(self.scores.output.shape[:-2]) != self.batches:
            return f"a batch of {self.factors} does not fit scores {self.scores.output}"
        for name, layout in self.layouts.items():
            if len(layout.batch) != len(self.factors):
                return f"{name}_strides do not fit a batch of {len(self.factors)} factors"
            extents = (*self.factors, rows[name], columns[name])
            strides = (*layout.batch, layout.row, layout.column)
            if min((*strides, layout.offset)) < 0:
                return f"a negative stride of {name}"
            last = sum((size - 1) * step for size, step in zip(extents, strides, strict=True))
            if layout.offset + last >= self.tensors[name].size:
                return f"{name} reaches beyond its tensor"
        if self.layouts["out"].column != 1 and self.e > 1:
            return "the result's columns are not next to each other"
        return None

    def views(self, stored: Sequence[Expr]) -> dict[str, Expr]:
        """The parameters of q, k, v, the result and a sink as flat buffers."""
        pairs = zip(self.tensors.items(), stored, strict=True)
        return {name: as_elements(buffer, tensor) for (name, tensor), buffer in pairs}

    def logical(self, name: str, stored: np.ndarray) -> np.ndarray:
        """An operand as [*factors, rows, columns], by numpy; a view."""
        layout = self.layouts[name]
        rows = self.n if name in ("k", "v") else self.m
        columns = {"q": self.d, "k": self.d, SINK: 1}.get(name, self.e)
        flat = np.ascontiguousarray(stored).reshape(-1)[layout.offset :]
        item = flat.itemsize
        strides = [item * s for s in (*layout.batch, layout.row, layout.column)]
        return as_strided(flat, (*self.factors, rows, columns), strides)

    def multiplied(self, name: str, stored: np.ndarray) -> np.ndarray:
        """`logical` of "q", "k" or "v", in the type in which it is multiplied."""
        value = self.logical(name, stored)
        return value.astype(np.float32) if self.widens(name) else value

    def widens(self, name: str) -> bool:
        """Whether "q", "k" or "v" is stored in a narrower type than it is multiplied in."""
        part = self.product if name == "v" else self.scores
        wide = part.inputs[name != "q"].dtype
        return name != "q" and wide == "float32" and self.tensors[name].dtype in WIDENED


def sets_side_by_side(problem: AttentionProblem) -> int:
    """How many consecutive sets have contiguous rows of K, and of V; 1: rows are not contiguous."""
    innermost = [
        number
        for number, extent in enumerate(problem.factors)
        if extent > 1 and (problem.layouts["k"].batch[number] or problem.layouts["v"].batch[number])
    ]
    if not innermost or not columns_are_contiguous(problem.layouts["k"], problem.d):
        return 1
    count = problem.factors[innermost[-1]]
    for name, width in (("k", problem.d), ("v", problem.e)):
        layout = problem.layouts[name]
        if not 0 < layout.batch[innermost[-1]] * count <= layout.row + width:
            return 1
    stored = problem.tensors["k"], problem.tensors["v"]
    bits = sum(bits_of_element(tensor.dtype) for tensor in stored) // 2
    read = count * problem.n * (problem.d + problem.e) * bits // 8
    return count if read > SIDE_BYTES else 1


def bits_of_element(dtype: str) -> int:
    """Bits of an element of q, k or v."""
    return {"float32": 32, "bfloat16": 16, "float16": 16}.get(dtype, 8)


def few_queries(problem: AttentionProblem) -> AttentionProblem | None:
    """The attention with few queries: with one query, if their number is dynamic.

    None if queries are many, or too many rows share k and v, or a dynamic number of queries equals
    that of keys: a single query then has a single key.
    """
    dynamic = isinstance(problem.m, SymbolicSize)
    if dynamic and problem.m == problem.n:
        return None
    few = copy.copy(problem)
    few.m = 1 if dynamic else problem.m
    return few if few.m <= MOST_QUERIES and few.m * few.group <= MOST_ROWS else None


def columns_are_contiguous(layout: Layout, columns: int) -> bool:
    """Whether the columns of a row are contiguous."""
    return layout.column == 1 or columns == 1


def with_columns(softmax: Region, columns: int) -> Region:
    """The softmax for another number of scores, without operands."""
    (scores,), output = softmax.inputs, softmax.output
    shape = *output.shape[:-1], columns
    tensors = (Tensor(shape, scores.dtype),), Tensor(shape, output.dtype)
    return softmax.replace(inputs=tensors[0], output=tensors[1])


_LINE = 64  # bytes of a cache line


class NextRows:
    """Prefetches the operands of the next attention into L2, in step with this one's queries.

    If 50 MB are read from memory, one row with each row of the softmax is 10% to 17% faster than no
    prefetch, and 5% faster than all rows of a row block together; prefetching into L1 is slower
    (measured on Zen 4). The kernel needs `PREFETCH_LLVM_IR`.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts.
    buffers : mapping
        "q", "k", "v", "out": flat views of the parameters.
    """

    def __init__(self, problem: AttentionProblem, buffers: Mapping[str, Expr]) -> None:
        self.problem, self.buffers = problem, buffers
        self.names = [name for name in OPERANDS if problem.layouts[name].column == 1]

    def fetch(self, following: Expr, row: Expr) -> None:
        """Prefetches with one query; `following` is the number of the next attention."""
        problem = self.problem
        for name in self.names:
            rows = problem.m if name in ("q", "out") else problem.n
            share = math.ceil(rows / problem.m)
            for number in range(share):
                at = row * share + number
                if rows % problem.m:
                    at = tirx.Min(at, rows - 1)
                self._line(name, problem.base(name, following), at)

    def begin(self, following: Expr) -> None:
        """Finds the next attention's operands, for dynamic sizes."""
        self.bases = {name: materialise(self.problem.base(name, following)) for name in self.names}
        self.keys = materialise(self.problem.keys)
        queries = tirx.Max(as_expr(extent(self.problem.m)), tirx.const(1, "int32"))
        self.share = materialise(emission.ceil_div(self.keys, queries))

    def fetch_dynamic(self, row: Expr) -> None:
        """`fetch` for dynamic sizes, after `begin`; only keys that are multiplied."""
        for name in self.names:
            if name in ("q", "out"):
                self._line(name, self.bases[name], row)
        with I.serial(self.share) as number, emission.opaque_block("next"):
            at = materialise(tirx.Min(row * self.share + number, self.keys - 1))
            for name in self.names:
                if name in ("k", "v"):
                    self._line(name, self.bases[name], at)

    def _line(self, name: str, base: Expr, row: Expr) -> None:
        """Prefetches one row of an operand."""
        problem = self.problem
        columns = problem.d if name in ("q", "k") else problem.e
        step = _LINE // int(DataType(problem.tensors[name].dtype).itemsize)
        for column in range(0, columns, step):
            prefetch(self.buffers[name][problem.element(name, base, row, column)])


# How queries are divided, so that AMX tiles are configured once for each height.
#
# Vector kernels have register tiles of any height, so rows are divided into equal pieces. AMX tiles
# are configured for full blocks, then for the tail, so all full blocks come first.


def tile_kernel(kernels: Sequence[Microkernel]) -> Microkernel | None:
    """The kernel that configures tile registers; None if all are vector kernels."""
    return next((kernel for kernel in kernels if kernel.by_tiles), None)


def row_unit(kernels: Sequence[Microkernel]) -> int:
    """The number of rows of which every piece is a multiple, except the tail."""
    kernel = tile_kernel(kernels)
    return 1 if kernel is None else kernel.mr


def blocks_of(kernel: Microkernel, rows: int) -> tuple[Group, ...]:
    """The register tiles of a row block."""
    return cut_in_units(rows, kernel.mr, row_unit([kernel]))


def row_shares(rows: int, parts: int, unit: int) -> tuple[Group, ...]:
    """Cuts rows into at most `parts` chunks for tasks; the last one may be smaller."""
    parts = min(parts, rows)
    if unit == 1:
        return shares(rows, parts)
    size = math.ceil(rows / unit / parts) * unit
    count, rest = divmod(rows, size)
    groups = [Group(0, count, size)] if count else []
    if rest:
        groups.append(Group(count * size, 1, rest))
    return tuple(groups)
