"""Sizes that a few integers of the inputs tell, such as how many keys a cache shall have.

    lv = R.maximum(total, R.const([24]))                    total: int64[1], an input
    lv1 = R.tensor_to_shape(lv)
    lv2: R.Shape([found_1]) = R.match_cast(lv1, R.Shape([found_1]))

It takes next to no time to find such a size, so it may be found twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm_ffi
from tvm import ir, relax
from tvm.relax.analysis import definable_tir_vars_in_type, tir_vars_in_type

from ..ir.graph import AnyBinding, op_name, static_tensor

MOST_ELEMENTS = 64  # of a tensor that sizes are computed with

_UNSURE = ("relax.call_packed", "relax.call_dps_packed", "relax.call_pure_packed")


class ToldSizes:
    """The sizes that data decide in one function, and what tells them.

    Parameters
    ----------
    function : relax.Function
        In A-normal form.
    """

    def __init__(self, function: relax.Function) -> None:
        self._params = {*function.params}
        self._known = {v for param in function.params for v in definable_tir_vars_in_type(param.ty)}
        self._bindings = [each for block in function.body.blocks for each in block.bindings]
        self._places: dict[relax.Var, int] = {}  # of values and of sizes
        for place, binding in enumerate(self._bindings):
            for var in (binding.var, *_defined(binding)):
                self._places.setdefault(var, place)
        self._found: dict[int, frozenset[int] | None] = {}

    def are_told(self, sizes: Iterable[relax.Var]) -> bool:
        """Whether the inputs' shapes, or a few integers in them, tell all these sizes."""
        return self._telling(sizes) is not None

    def bindings(self, sizes: Iterable[relax.Var]) -> list[AnyBinding]:
        """The bindings that tell these sizes, in order."""
        return [self._bindings[place] for place in sorted(self._telling(sizes) or ())]

    def _telling(self, needed: Iterable[relax.Var]) -> frozenset[int] | None:
        """The places of the bindings behind values and sizes; None if they do much."""
        found: frozenset[int] = frozenset()
        for var in needed:
            if var in self._known or (var in self._params and _is_small(var, vectors=True)):
                continue
            place = self._places.get(var)
            more = None if place is None else self._before(place)
            if more is None:
                return None
            found |= more
        return found

    def _before(self, place: int) -> frozenset[int] | None:
        """The places of a binding and of those that it needs; None as of `_telling`."""
        if place not in self._found:
            binding = self._bindings[place]
            is_little = _is_small(binding.var) and _is_plain(binding.value)
            before = self._telling(_used(binding)) if is_little else None
            self._found[place] = None if before is None else before | {place}
        return self._found[place]


def _is_small(var: relax.Var, vectors: bool = False) -> bool:
    """Whether a value is a shape or a few integers; or a vector of any length, if these count."""
    if isinstance(var.ty, relax.ShapeType):
        return True
    if not isinstance(var.ty, relax.TensorType) or "int" not in str(var.ty.dtype):
        return False
    tensor = static_tensor(var)
    return (vectors and var.ty.ndim == 1) or (tensor is not None and tensor.size <= MOST_ELEMENTS)


def _is_plain(value: relax.Expr) -> bool:
    """Whether an expression gives the same whenever it is computed."""
    if isinstance(value, relax.Call):
        return op_name(value).startswith("relax.") and op_name(value) not in _UNSURE
    return isinstance(value, relax.ShapeExpr | relax.Var)


def _defined(binding: AnyBinding) -> set[relax.Var]:
    """The sizes that a binding gives their numbers, or compares if they have some."""
    if not isinstance(binding, relax.MatchCast):
        return set()
    return {*definable_tir_vars_in_type(binding.ty)}


def _used(binding: AnyBinding) -> set[relax.Var]:
    """The values and sizes that a binding needs."""
    found = {*tir_vars_in_type(binding.var.ty)} - _defined(binding)
    value = binding.value
    for part in value.args if isinstance(value, relax.Call) else [value]:
        if isinstance(part, relax.Var):
            found.add(part)
        elif not isinstance(part, ir.GlobalVar | ir.GenericConst):
            tvm_ffi.structural_walk(part, (relax.Var, found.add))
    return found
