"""Keys and values in caches: those that grow, heads with room for more rows, hidden keys.

    present[h, j] = past[h, j] if j < P else new[h, j - P]        heads h, of all batches

The heads of past and present may lie apart, in tensors that have room for more rows. If both are
the same tensor, only new rows are written. Else, where there is one query, the past is read once:
its scores and products are computed of what has just been copied, which is in L1. What is more than
caches hold is copied by streaming stores.
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
from tir_schedules.core.extents import as_elements, as_expr, extent
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import is_open, quotient

from .problem import AttentionProblem, Layout, few_queries

STREAMED_BYTES = 1 << 19
"""Of a tensor of keys: more are not read soon enough to be found in cache."""


@dataclass(frozen=True)
class Growth:
    """What the keys, or the values, of a region are made of: tensors [..., rows, columns]."""

    past: Tensor
    new: Tensor


def reject_growth(region: Region, growths: Mapping[str, Growth], isa: Isa) -> str | None:
    """Why a region's k and v ("k", "v") cannot be written by its own kernel, or None."""
    problem = AttentionProblem(region)
    if not region.is_open or few_queries(problem) is None:
        return "many queries, or sizes that are known"
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
    """One tensor of keys or values, all its heads, and what it is made of.

    Parameters
    ----------
    growth : Growth
        What it is made of.
    given : sequence of buffer
        The past and the new one, f32; rows are whole vectors.
    present : buffer
        The result, flat.
    apart : tuple of int
        Elements from one head to the next, of the past and of the result; may be symbolic.
    lanes : int
        Of a vector register.

    Attributes
    ----------
    reading : Expr or None
        The head whose past is read in the place of the result.
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
        # A single head lies where it lies.
        distances = (
            tirx.EQ(self.step, self.past_step) if self.heads != 1 else tirx.const(True, "bool")
        )
        beyond = I.floormod(begin, tirx.const(4 * lanes, "int64"))
        # Whether past and result are the same tensor, and the result begins where a vector can.
        self.in_place = emission.evaluated(tirx.And(tirx.EQ(begin, own), distances))
        self.aligned = emission.evaluated(tirx.EQ(beyond, tirx.const(0, "int64")))

    def past_at(self, head: Expr, row: Index) -> Expr:
        """Where a row of the past begins."""
        return head * self.past_step + row * self.columns

    def _at(self, head: Expr, row: Index) -> Expr:
        """Where a row of the result begins."""
        return head * self.step + row * self.columns

    def copy(self, head: Expr, first: Index = 0) -> None:
        """Copies a head's rows from the row `first` of the past on, and the new ones."""
        past, new = (as_expr(extent(n)) for n in (self.past_rows, self.growth.new.shape[-2]))
        with I.If(tirx.Not(self.in_place)), I.Then(), emission.opaque_block("apart"):
            goal = self._at(head, first)
            self._copy(self.past, self.past_at(head, first), goal, past - first)
        self._copy(self.new, head * new * self.columns, self._at(head, past), new)

    def read_past(self, base: Expr, seen: Expr, rows: int, body: Callable[[Expr], None]) -> Expr:
        """Copies the head that begins at `base`, and multiplies its past meanwhile.

        Runs `body(number)` for each `rows` rows that have just been copied, of the first `seen`
        ones, and returns how many times.
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
        """Copies some rows of the past, which are read at once."""
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
        """Copies rows that lie behind each other."""
        source, goal = materialise(source), materialise(goal)
        with I.serial(rows * (self.columns // self.lanes)) as at, emission.opaque_block("copied"):
            index = at * self.lanes
            self._store(goal + index, buffer[ramp(source + index, self.lanes)])


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


def keys_and_values(problem: AttentionProblem, *names: str) -> list[tuple[Expr, int]]:
    """The parameters of k and v, and how far heads are apart; 0 unless a tensor may have room."""
    found = []
    for name, parameter in zip("kv", names, strict=True):
        tensor = problem.tensors[name]
        if is_open((problem.n,)) and reject_room(problem, name) is None:
            found.append(placement.cache_parameter(parameter, tensor))
        else:
            found.append((emission.tensor_parameter(parameter, tensor), 0))
    return found


def give_room(problem: AttentionProblem, cached: Sequence[tuple[Expr, int]]) -> None:
    """Has an attention find k and v where their heads are; `cached` as of `keys_and_values`."""
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
# Keys behind the last one that the mask shows to any query have probabilities of 0: nothing is
# multiplied by them. A cache of fixed size is so read as far as it is filled. Few queries leave out
# the keys before the first one, too: a sliding window is all that they read.


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


def count_seen(scores: Region, operands: Sequence[Expr]) -> tuple[Expr, Expr] | None:
    """Emits the search for the first and the last key that are seen.

    Returns how many keys are before the first one, and how many up to the last one, at least one.
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
    first, begin, end = (I.sblock_alloc_buffer((1,), "int32") for _ in range(3))
    I.buffer_store(seen, zero, [zero])
    I.buffer_store(first, n, [zero])

    def is_hidden(place: Expr, elements: int) -> Expr:
        """Whether the mask shows none of so many keys."""
        some = I.reinterpret(f"int{8 * elements}", mask[ramp(place, elements)])
        return tirx.EQ(some, tirx.const(0, f"int{8 * elements}"))

    rows = materialise(I.floordiv(size, tirx.Max(n, one)))
    with I.serial(rows) as row, emission.opaque_block("seen"):
        start = materialise(row * n)
        I.buffer_store(end, n, [zero])
        I.buffer_store(begin, zero, [zero])
        for elements in (_WORD, 1):
            # A condition is an And, whose second half TVM's code evaluates only if the first holds.
            nothing = is_hidden(start + end[zero] - elements, elements)
            with I.While(tirx.And(end[zero] >= seen[zero] + elements, nothing)):
                I.buffer_store(end, end[zero] - elements, [zero])
            nothing = is_hidden(start + begin[zero], elements)
            with I.While(tirx.And(begin[zero] + elements <= first[zero], nothing)):
                I.buffer_store(begin, begin[zero] + elements, [zero])
        I.buffer_store(seen, tirx.Max(seen[zero], end[zero]), [zero])
        I.buffer_store(first, tirx.Min(first[zero], begin[zero]), [zero])
    count = materialise(tirx.Max(seen[zero], one))
    return materialise(tirx.Min(first[zero], count - 1)), count
