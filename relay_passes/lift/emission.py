"""Emission: the bindings of lifted functions, without duplicates; they can be undone.

Before

    lv = R.subtract(R.astype(x, "int32"), R.const(3))       # x: uint8
    lv1 = R.permute_dims(lv, [1, 0])

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.subtract(R.astype(lv, "int32"), R.const(3))

So a product finds the 8-bit integers and the zero point of its operand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import IRModule, ir, relax, tirx

from microkernels.base.arrays import RANGES
from microkernels.base.tvm_compat.relax import structural_key
from relay_passes.ir.axes import view_of
from relay_passes.ir.constants import array_of
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import is_call, scalar_constant
from relay_passes.ir.rewrite import Bindings
from tir_schedules.tensorize import arrangement
from tir_schedules.tensorize.arrangement import (
    ArrangementProblem,
    ChooseArrangement,
    Contraction,
    Labels,
    Units,
)


class Tensors(dict[tirx.Var, relax.Expr]):
    """The values of a function's buffers."""

    def __missing__(self, buffer: tirx.Var) -> relax.Expr:
        raise arrangement.RefusedError("a tensor that is not written yet")


_MOVES = ("relax.permute_dims", "relax.reshape", "relax.strided_slice", "relax.flip")


class Emission(Bindings):
    """Bindings in which no value is computed twice.

    A value that a function computes twice, such as x - mean(x) in a variance, is one value for the
    passes that recognise it.

    Parameters
    ----------
    lanes : int
        Lanes of a float32 vector on the target, for estimates.
    arrange : callable, optional
        Returns recorded arrangements of contractions.
    """

    def __init__(self, lanes: int = 16, arrange: ChooseArrangement | None = None) -> None:
        super().__init__()
        self.lanes, self.arrange = lanes, arrange
        self._known: dict[Hashable, relax.Var] = {}
        self._places: dict[relax.Expr, int] = {}

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """The variable of an expression: the one with an equal expression, or a new one."""
        value = self.builder.normalize(self._widened_last(expr))
        if isinstance(value, relax.Var):
            return value
        key = structural_key(value)
        var = self._known.get(key)
        if var is None or not self._is_there(var):
            var = self._known[key] = super().emit(value, name)
            self._places[var] = len(self.bindings) - 1
        return var

    def definition(self, expr: relax.Expr) -> relax.Expr | None:
        """The expression emitted for a variable; None for any other expression."""
        binding = self.bindings[self._places[expr]] if self._is_there(expr) else None
        return binding.value if isinstance(binding, relax.VarBinding) else None

    @property
    def mark(self) -> int:
        """The current state, for `undo`."""
        return len(self.bindings)

    def undo(self, mark: int) -> None:
        """Removes what was emitted after a mark."""
        del self.bindings[mark:]

    def _widened_last(self, call: relax.Expr) -> relax.Expr:
        """Moves widening to int32 after a call that moves elements; other calls stay."""
        if not is_call(call, *_MOVES, "relax.nn.pad"):
            return call
        wide = self.definition(call.args[0])
        if is_call(wide, "relax.astype") and str(wide.ty.dtype) == "int32":
            if str(wide.args[0].ty.dtype) not in RANGES:
                return call
            return relax.op.astype(self._moved(call, wide.args[0]), "int32")
        if is_call(wide, "relax.subtract") and str(wide.ty.dtype) == "int32":
            x, zero_point = wide.args
            if scalar_constant(zero_point) is None or is_call(call, "relax.nn.pad"):
                return call
            moved = self.emit(with_args(call, [x, *call.args[1:]]))
            return relax.op.subtract(moved, zero_point)
        return call

    def _moved(self, call: relax.Call, source: relax.Expr) -> relax.Expr:
        """A call that moves elements, applied to another tensor; of a constant, a constant."""
        if isinstance(source, ir.GenericConst):
            array = array_of(source.value)
            flips = is_call(call, "relax.flip")
            view = np.flip(array, int(call.attrs.axis)) if flips else view_of(array, call)
            if view is not None:
                return relax.const(np.ascontiguousarray(view), str(source.ty.dtype))
        return self.emit(with_args(call, [source, *call.args[1:]]))

    def _is_there(self, var: relax.Expr) -> bool:
        place = self._places.get(var, -1) if isinstance(var, relax.Var) else -1
        return 0 <= place < len(self.bindings) and self.bindings[place].var.same_as(var)


# Writes a contraction as a matmul.
#
# Before
#
#     out[q, h, k] = sum over d of left[h, q, d] * right[k, h, d]
#
# After
#
#     lv = R.permute_dims(right, [1, 2, 0])           # [h, d, k]
#     lv1 = R.matmul(left, lv)                        # [h, q, k]
#     lv2 = R.permute_dims(lv1, [1, 0, 2])
#
# Axes of a group become one by a reshape: if they are adjacent, before the permutation, so that the
# reshape moves nothing and "batch_matmul" reads and stores in place.


Extents = Mapping[str, Any]  # extent of every label: numbers, or expressions of a shape


Pair = tuple[relax.Expr, relax.Expr]  # left and right


def emit_contraction(
    block: Emission, contraction: Contraction, operands: Pair, extents: Extents, dtype: str
) -> tuple[relax.Expr, str]:
    """Emits a contraction as a matmul.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    contraction : Contraction
        The contraction.
    operands : tuple of relax.Expr
        Left and right, their axes in the contraction's order.
    extents : mapping
        Label -> extent, in the form in which shapes have it.
    dtype : str
        Type of the result.

    Returns
    -------
    value : relax.Expr
        The result, with the axes of `contraction.out`; its last operator is not bound yet.
    how : str
        Which candidate was chosen, and what the next one would cost.

    Raises
    ------
    RefusedError
        If no product of matrices computes it.
    """
    a_constant, b_constant = (isinstance(operand, ir.GenericConst) for operand in operands)
    arrangement.check(contraction, (a_constant, b_constant))
    if any(contraction.alone) and any(str(each.ty.dtype) != "float32" for each in operands):
        raise arrangement.RefusedError(
            "an axis that only one operand has: its sums may not fit in the operand's type"
        )
    stored = contraction.left, contraction.right
    left, right = operands
    for number, (labels, alone) in enumerate(zip(stored, contraction.alone, strict=True)):
        if alone:  # sums the operand over the axes that only it has
            places = [labels.index(label) for label in alone]
            summed = block.emit(relax.op.sum(operands[number], places))
            left, right = (left, summed) if number else (summed, right)
    inner = contraction.without_alone()
    constants = a_constant, b_constant
    found = arrangement.arrangements(inner, constants, block.lanes)
    types = str(left.ty.dtype), str(right.ty.dtype), dtype
    problem = ArrangementProblem(inner, types, constants, tuple(found))
    (best, *others), source = problem.candidates, ""
    known = block.arrange(problem) if block.arrange is not None else None
    if known is not None:
        ordered = problem.best_first(known.choice)
        source = f"; by {known.source}" if ordered else f"; {known.source} names no candidate"
        best, *others = ordered or problem.candidates
    if best.swapped:
        left, right = right, left
    given = best.contraction
    axes = _Axes(block, given, extents)
    a = axes.joined(left, given.left, best.left)
    b = axes.joined(right, given.right, best.right)
    if dtype == "int32":
        a, b = (widened(block, each) for each in (a, b))
    product = relax.op.matmul(a, b, out_dtype=dtype)
    how = f"{given.text()}; {best.text()}"
    if others and best.cycles:
        ratio, count = others[0].cycles / best.cycles, 1 + len(others)
        how += f"; of {count} candidates the next costs {ratio:.2f}x: {others[0].text()}"
    return axes.apart(product, best.out), how + source


def widened(block: Emission, value: relax.Expr) -> relax.Expr:
    """A tensor of integers, cast to int32."""
    wide = str(value.ty.dtype) == "int32"
    return value if wide else block.emit(relax.op.astype(value, "int32"))


def emit_elementwise(
    block: Emission, contraction: Contraction, operands: Pair, extents: Extents
) -> relax.Expr:
    """Emits a contraction element by element; the last operator is not bound yet."""
    steps = (*contraction.steps, *contraction.alone[0], *contraction.alone[1])
    order = (*contraction.out, *steps)
    factors = []
    for operand, labels in zip(operands, (contraction.left, contraction.right), strict=True):
        kept = [label for label in order if label in labels]
        operand = _permuted(block, operand, [labels.index(label) for label in kept])
        shape = [extents[label] if label in labels else 1 for label in order]
        factors.append(block.emit(relax.op.reshape(operand, shape)))
    product = relax.op.multiply(*factors)
    if not steps:
        return product
    first = len(contraction.out)
    return relax.op.sum(block.emit(product), list(range(first, first + len(steps))))


@dataclass(frozen=True)
class _Axes:
    """Joins the axes of a contraction into units, and splits units into axes."""

    block: Emission
    given: Contraction
    extents: Extents

    def joined(self, expr: relax.Expr, stored: Labels, units: Units) -> relax.Expr:
        """An operand with one axis for each unit."""
        if not arrangement.is_view(self.given, stored, units):
            order = tuple(itertools.chain(*units))
            expr = _permuted(self.block, expr, [stored.index(label) for label in order])
            return self.reshaped(expr, _singles(order), units)
        places = arrangement.in_memory(self.given, stored, units)
        expr = self.reshaped(expr, _singles(stored), places)
        return _permuted(self.block, expr, _order(places, units))

    def apart(self, product: relax.Expr, units: Units) -> relax.Expr:
        """A product of units as the tensor of the contraction's result."""
        stored = self.given.out
        product = self.block.emit(product)
        if arrangement.is_view(self.given, stored, units):
            places = arrangement.in_memory(self.given, stored, units)
            product = _permuted(self.block, product, _order(units, places))
            return self.reshaped(product, places, _singles(stored))
        order = tuple(itertools.chain(*units))
        product = self.reshaped(product, units, _singles(order))
        return _permuted(self.block, product, [order.index(label) for label in stored])

    def reshaped(
        self, expr: relax.Expr, before: Sequence[Labels], after: Sequence[Labels]
    ) -> relax.Expr:
        """A tensor with axes `before` reshaped to axes `after`: equal labels in equal order."""
        if list(before) == list(after):
            return expr
        shape = [math.prod((self.extents[label] for label in unit), start=1) for unit in after]
        return self.block.emit(relax.op.reshape(expr, shape))


def _order(before: Sequence[Labels], after: Sequence[Labels]) -> list[int]:
    """The permutation from some units to their reordered list; units may be empty."""
    left = list(range(len(before)))
    order = []
    for unit in after:
        place = next(i for i in left if before[i] == unit)
        left.remove(place)
        order.append(place)
    return order


def _singles(labels: Labels) -> Units:
    return tuple((label,) for label in labels)


def _permuted(block: Emission, expr: relax.Expr, order: list[int]) -> relax.Expr:
    same = order == list(range(len(order)))
    return expr if same else block.emit(relax.op.permute_dims(expr, order))


_MEASURED = ("float32", "bfloat16", "uint8", "int8")


def can_be_measured(problem: ArrangementProblem) -> bool:
    """Whether there is a choice, and operands of types that a measurement can supply."""
    return problem.has_choice and all(each in _MEASURED for each in problem.types[:2])


def arranged_module(
    problem: ArrangementProblem, candidate: arrangement.Arrangement, lanes: int
) -> IRModule:
    """A module of one block that computes a contraction; its inputs are the operands that vary.

    Parameters
    ----------
    problem : ArrangementProblem
        A problem for which `can_be_measured`.
    candidate : Arrangement
        One of the problem's candidates.
    lanes : int
        As in `arrangements`.
    """
    given, rng = problem.contraction, np.random.default_rng(0)
    choice = problem.choice(candidate)
    block = Emission(lanes, lambda _: arrangement.KnownArrangement(choice, "measuring"))
    operands: list[relax.Expr] = []
    inputs: list[relax.Var] = []
    both = zip((given.left, given.right), problem.types[:2], problem.constants, strict=True)
    for number, (labels, dtype, known) in enumerate(both):
        shape = [int(given.extents[label]) for label in labels]
        if known:
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            operands.append(relax.const(rng.integers(0, 4, shape).astype(kind), dtype))
        else:
            inputs.append(relax.Var(f"x{number}", relax.TensorType(shape, dtype)))
            operands.append(inputs[-1])
    value, _ = emit_contraction(
        block, given, (operands[0], operands[1]), given.extents, problem.types[2]
    )
    result = relax.Var("result", block.builder.normalize(value).ty)
    block.bind(result, value)
    body = relax.SeqExpr([relax.DataflowBlock(block.bindings)], result)
    main = relax.Function(inputs, body, result.ty).with_attr("global_symbol", "main")
    return IRModule({"main": main})
