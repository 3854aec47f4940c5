"""Keys and values in KV caches: growing caches, heads with room for more rows, hidden keys.

    present[h, j] = past[h, j] if j < P else new[h, j - P]        heads h, of all batches

The heads of past and present may lie apart, in tensors with room for more rows. If past and present
are one tensor, only new rows are written. Else, with a single query, the past is read once: its
scores and products are computed from rows that have just been copied and are in L1. A past that
exceeds the CPU's caches is copied by streaming stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, Index, materialise, ramp
from microkernels.vector.memory import address_of, stream
from tir_schedules.core import emission, placement
from tir_schedules.core.extents import allocated, as_elements, as_expr, extent
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import is_dynamic, quotient

from .problem import AttentionProblem, Layout, few_queries

STREAMED_BYTES = 1 << 19
"""Bytes of a tensor of keys; larger tensors leave the cache before they are read again."""


@dataclass(frozen=True)
class Growth:
    """The past and the new rows of a region's keys or values: tensors [..., rows, columns]."""

    past: Tensor
    new: Tensor


def reject_growth(region: Region, growths: Mapping[str, Growth], isa: Isa) -> str | None:
    """Why the kernel of a region cannot write its k and v ("k", "v") itself, or None."""
    problem = AttentionProblem(region)
    if not region.is_dynamic or few_queries(problem) is None:
        return "many queries, or static sizes"
    for name, growth in growths.items():
        whole = problem.tensors[name]
        columns = problem.d if name == "k" else problem.e
        if whole.dtype != "float32" or columns % isa.f32_lanes:
            return f"{name} is of type {whole.dtype}, {columns} columns"
        if {growth.past.dtype, growth.new.dtype} != {"float32"}:
            return f"{name} is converted"
        reason = reject_room(problem, name)
        if reason is not None:
            return reason
    return None


class GrowingCache:
    """One tensor of keys or values, of all heads, with its past and its new rows.

    Parameters
    ----------
    growth : Growth
        The past and the new rows.
    given : sequence of buffer
        The past and the new rows, f32; rows are whole vectors.
    present : buffer
        The result, flat.
    apart : tuple of int
        Elements from one head to the next, of the past and of the result; may be symbolic.
    lanes : int
        Lanes of a vector register.

    Attributes
    ----------
    reading : Expr or None
        The head whose past is read instead of the result; None: the result is read.
    """

    def __init__(
        self, growth: Growth, given: Sequence[Expr], present: Expr, apart: Sequence[int], lanes: int
    ) -> None:
        self.growth, self.present, self.lanes = growth, present, lanes
        self.past, self.new = map(as_elements, given, (growth.past, growth.new))
        self.reading: Expr | None = None
        begin, own = (materialise(address_of(each[0])) for each in (self.present, self.past))
        *batch, self.past_rows, self.columns = growth.past.shape
        self.heads = math.prod(batch)
        self.past_step, self.step = (as_expr(extent(each)) for each in apart)
        # The distance of heads does not matter for a single head.
        distances = (
            tirx.EQ(self.step, self.past_step) if self.heads != 1 else tirx.const(True, "bool")
        )
        beyond = I.floormod(begin, tirx.const(4 * lanes, "int64"))
        # Whether past and result are one tensor, and whether the result begins at a whole vector.
        self.in_place = emission.evaluated(tirx.And(tirx.EQ(begin, own), distances))
        self.aligned = emission.evaluated(tirx.EQ(beyond, tirx.const(0, "int64")))

    def past_at(self, head: Expr, row: Index) -> Expr:
        """Where a row of the past begins."""
        return head * self.past_step + row * self.columns

    def _at(self, head: Expr, row: Index) -> Expr:
        """Where a row of the result begins."""
        return head * self.step + row * self.columns

    def copy(self, head: Expr, first: Index = 0) -> None:
        """Copies a head's past rows from `first` on, and its new rows."""
        past, new = (as_expr(extent(n)) for n in (self.past_rows, self.growth.new.shape[-2]))
        with I.If(tirx.Not(self.in_place)), I.Then(), emission.opaque_block("apart"):
            goal = self._at(head, first)
            self._copy(self.past, self.past_at(head, first), goal, past - first)
        self._copy(self.new, head * new * self.columns, self._at(head, past), new)

    def read_past(self, base: Expr, seen: Expr, rows: int, body: Callable[[Expr], None]) -> Expr:
        """Copies the head that begins at `base`, and meanwhile multiplies its past.

        Runs `body(number)` after each copy of `rows` past rows, within the first `seen` rows.
        Returns how often `body` runs.
        """
        head = materialise(I.floordiv(base, tirx.Max(self.step, tirx.const(1, "int32"))))
        past = as_expr(extent(self.past_rows))
        whole = materialise(I.floordiv(tirx.Min(past, seen), rows))
        self.copy(head, whole * rows)
        self.reading = head
        with I.serial(whole) as number, emission.opaque_block("past"):
            with I.If(tirx.Not(self.in_place)), I.Then(), emission.opaque_block("apart"):
                self._copy_past(head, number * rows, rows)
            body(number)
        self.reading = None
        return whole

    def _copy_past(self, head: Expr, first: Expr, rows: int) -> None:
        """Copies some rows of the past, which are read right afterwards."""
        source = materialise(self.past_at(head, first))
        goal = materialise(self._at(head, first))
        vectors = rows * self.columns // self.lanes
        all_rows = as_expr(extent(self.past_rows + self.growth.new.shape[-2]))
        much = all_rows * (4 * self.columns) * as_expr(extent(self.heads)) >= STREAMED_BYTES

        def both(store: Callable[[Expr, Expr], None]) -> None:
            with I.serial(vectors) as at:
                index = at * self.lanes
                store(goal + index, self.past[ramp(source + index, self.lanes)])

        if self.lanes == 1:
            both(self._store)
            return
        with I.If(tirx.And(much, self.aligned)):
            with I.Then(), emission.opaque_block("streamed"):
                both(lambda place, value: stream(self.present[place], value))
            with I.Else(), emission.opaque_block("stored"):
                both(self._store)

    def _store(self, place: Expr, value: Expr) -> None:
        I.buffer_store(self.present, value, [ramp(place, self.lanes)])

    def _copy(self, buffer: Expr, source: Expr, goal: Expr, rows: Expr) -> None:
        """Copies contiguous rows."""
        source, goal = materialise(source), materialise(goal)
        with I.serial(rows * (self.columns // self.lanes)) as at, emission.opaque_block("copied"):
            index = at * self.lanes
            self._store(goal + index, buffer[ramp(source + index, self.lanes)])


# Keys and values in tensors that may have room for more rows: heads then lie apart.
#
# A decoder's KV caches are such tensors if a caller keeps them in a larger array; see
# `cache_parameter`.


def reject_room(problem: AttentionProblem, name: str) -> str | None:
    """Why the tensor "k" or "v" cannot have room for more rows, or None."""
    whole, layout = problem.tensors[name], problem.layouts[name]
    columns = problem.d if name == "k" else problem.e
    if whole.dtype != "float32":
        return f"{name} is of type {whole.dtype}"
    if whole.shape[-2:] != (problem.n, columns) or (layout.row, layout.column) != (columns, 1):
        return f"rows of {name} are not contiguous"
    heads, stride = 1, columns * problem.n
    for factor, step in zip(reversed(problem.factors), reversed(layout.batch), strict=True):
        shared = heads == 1 and step == 0  # by consecutive queries
        if factor != 1 and not shared:
            if step != stride:
                return f"heads of {name} are not consecutive"
            heads, stride = heads * factor, stride * factor
    if layout.offset or math.prod(whole.shape[:-2]) != heads:
        return f"{name} has more heads than the attention"
    return None


def keys_and_values(problem: AttentionProblem, *names: str) -> list[tuple[Expr, int]]:
    """The parameters of k and v, each with the distance of its heads; 0 without room for rows."""
    found = []
    for name, parameter in zip("kv", names, strict=True):
        tensor = problem.tensors[name]
        if is_dynamic((problem.n,)) and reject_room(problem, name) is None:
            found.append(placement.cache_parameter(parameter, tensor))
        else:
            found.append((emission.tensor_parameter(parameter, tensor), 0))
    return found


def give_room(problem: AttentionProblem, cached: Sequence[tuple[Expr, int]]) -> None:
    """Sets the layouts of k and v to the distances of their heads from `keys_and_values`."""
    for name, (_, distance) in zip("kv", cached, strict=True):
        if not distance:
            continue
        layout, tensor = problem.layouts[name], problem.tensors[name]
        close = math.prod(tensor.shape[-2:])
        steps = [quotient(step, close) for step in layout.batch]
        batch = tuple(distance * step for step in steps if step is not None)
        assert len(batch) == len(steps)
        problem.layouts[name] = Layout(batch, layout.row, layout.column)


# How many keys any query sees, by a mask that is read when the kernel runs.
#
#     scores = where(mask, scores, -inf)        mask: bool [..., queries, keys]
#
# Keys after the last key that the mask shows to any query have probabilities of 0 and are skipped:
# a cache of fixed size is read only as far as it is filled. Each row block of queries skips the
# keys after the last one that it sees: half of all keys if the mask is causal. Few queries also
# skip the keys before the first visible key: with a sliding window, they read only the window.


_WORD = 8  # elements of the mask that are searched together


def hiding_mask(scores: Region) -> int | None:
    """The number of the scores' operand that is a mask of keys; None if there is none."""
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


@dataclass(frozen=True)
class SeenKeys:
    """What a mask shows, found at run time.

    Attributes
    ----------
    number : int
        The number of the scores' operand that is the mask.
    before : Expr
        Keys before the first one that any query sees.
    count : Expr
        Keys up to the last one that any query sees; at least one.
    ends : buffer
        Keys up to the last one that each row of the mask shows, int32.
    """

    number: int
    before: Expr
    count: Expr
    ends: Expr


def find_seen(scores: Region, operands: Sequence[Expr]) -> SeenKeys | None:
    """Emits the search for the keys that a mask shows; None if there is no mask.

    `operands` are the parameters of the scores' operands.
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
    first, begin, end = (I.sblock_alloc_buffer((1,), "int32") for _ in range(3))
    ends = I.sblock_alloc_buffer((allocated(math.prod(tensor.shape[:-1])),), "int32")
    I.buffer_store(seen, zero, [zero])
    I.buffer_store(first, n, [zero])

    def is_hidden(place: Expr, elements: int) -> Expr:
        """Whether the mask hides all of `elements` keys."""
        some = I.reinterpret(f"int{8 * elements}", mask[ramp(place, elements)])
        return tirx.EQ(some, tirx.const(0, f"int{8 * elements}"))

    rows = materialise(I.floordiv(size, tirx.Max(n, one)))
    with I.serial(rows) as row, emission.opaque_block("seen"):
        start = materialise(row * n)
        I.buffer_store(end, n, [zero])
        I.buffer_store(begin, zero, [zero])
        for elements in (_WORD, 1):
            # TVM's code evaluates the second half of an And only if the first half holds.
            nothing = is_hidden(start + end[zero] - elements, elements)
            with I.While(tirx.And(end[zero] >= elements, nothing)):
                I.buffer_store(end, end[zero] - elements, [zero])
            nothing = is_hidden(start + begin[zero], elements)
            with I.While(tirx.And(begin[zero] + elements <= first[zero], nothing)):
                I.buffer_store(begin, begin[zero] + elements, [zero])
        I.buffer_store(ends, end[zero], [row])
        I.buffer_store(seen, tirx.Max(seen[zero], end[zero]), [zero])
        I.buffer_store(first, tirx.Min(first[zero], begin[zero]), [zero])
    count = materialise(tirx.Max(seen[zero], one))
    return SeenKeys(number, materialise(tirx.Min(first[zero], count - 1)), count, ends)
