"""Replaces the constants of a kernel by a parameter, so that similar kernels become one.

Before

    def matmul(A, W, C):
        C[...] = A[...] * T.Broadcast(T.float32(0.0107), 16)

After `numbers_as_parameter(matmul, {0: 0}, place=2)`

    def matmul(A, W, S: T.Buffer((1,)), C):
        C[...] = A[...] * T.Broadcast(S[0], 16)

This costs nothing: machine code reads a constant from memory, too. `tirx.noalias` says that no
other pointer reaches the parameter, so LLVM places its load where that of the constant would be.
Constants are the f32 numbers, and the integers in sums and products that are broadcast to all
lanes: zero points are there. The parameter has their bits, as int32. Constants are numbered in
the order of TVM's structural traversal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import tvm_ffi
from tvm import ir, tirx

from microkernels.base.errors import TvmHybridError
from microkernels.vector import placeholders
from microkernels.vector.expressions import Expr, cast, reinterpret

from .region import Region, region_form, region_numbers, traced

_INTEGERS = ("int16", "int32")
_TERMS = (tirx.Add, tirx.Sub, tirx.Mul)


def numbers_of(function: tirx.PrimFunc) -> tuple[np.uint32, ...]:
    """The bits of the numbers in a kernel's body, in order."""
    found: list[np.uint32] = []

    def look(place: int, number: Expr) -> Expr:
        found.append(_bits(number.value, str(number.ty)))
        return number

    _each_number(function, look)
    return tuple(found)


def filled(
    function: tirx.PrimFunc, trace: placeholders.Trace
) -> tuple[tirx.PrimFunc, Callable[[placeholders.Values], tuple[np.uint32, ...]]]:
    """A kernel that was built with placeholders, for the numbers of their trace.

    Returns
    -------
    PrimFunc
        The kernel with numbers.
    callable
        Other numbers -> `numbers_of` the kernel for them, if they meet the trace's conditions.
        Raises OverflowError where an integer is too large.
    """
    found: list[tuple[np.uint32 | placeholders.Placeholder, str]] = []

    def fill(place: int, number: Expr) -> Expr:
        element = str(number.ty)
        placeholder = _placeholder(number, trace)
        if placeholder is None:
            found.append((_bits(number.value, element), element))
            return number
        found.append((placeholder, element))
        return tirx.const(placeholder.value, element)

    def pin(call: ir.Call, mutator: tvm_ffi.StructuralMutator) -> Expr:
        placeholder = _placeholder(call, trace)
        if placeholder is None:
            return mutator.default_mutate(call)
        return tirx.const(placeholder.pinned(), str(call.ty))

    def numbers(values: placeholders.Values) -> tuple[np.uint32, ...]:
        read = placeholders.Reading(values)
        return tuple(
            _bits(read(number), element) if isinstance(number, placeholders.Placeholder) else number
            for number, element in found
        )

    body = _each_number(function, fill, trace)
    body = tvm_ffi.structural_mutate(body, [(ir.Call, pin)])
    kernel = tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)
    return kernel, numbers


def different_columns(
    members: Sequence[tuple[np.uint32, ...]],
) -> tuple[dict[int, int], list[np.ndarray]]:
    """The numbers that `numbers_as_parameter` moves out of kernels that differ only in numbers.

    Parameters
    ----------
    members : sequence of tuple
        `numbers_of` each kernel.

    Returns
    -------
    dict
        Number -> its place in the tensor; empty if all numbers are equal.
    list of ndarray
        The tensor of each kernel.
    """
    columns = list(zip(*members, strict=True))
    distinct = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    places = {column: index for index, column in enumerate(distinct)}
    moved = {number: places[each] for number, each in enumerate(columns) if each in places}
    values = np.array(distinct, np.uint32).reshape(-1, len(members)).view(np.float32)
    return moved, [np.ascontiguousarray(values[:, member]) for member in range(len(members))]


def without_numbers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with zero for every number: equal for kernels that differ in nothing else."""
    zeros = {kind: tirx.const(0, kind) for kind in ("float32", *_INTEGERS)}
    body = _each_number(function, lambda place, number: zeros[str(number.ty)])
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def numbers_as_parameter(
    function: tirx.PrimFunc, moved: Mapping[int, int], place: int
) -> tirx.PrimFunc:
    """A kernel that reads some of its numbers from a tensor.

    Parameters
    ----------
    function : PrimFunc
        The kernel.
    moved : mapping of int to int
        Which numbers, and where in the tensor each is.
    place : int
        Position of the new parameter, a float32 tensor as long as `moved` needs it.
    """
    length = 1 + max(moved.values())
    tensor = tirx.decl_buffer((length,), "float32", "S", data_alignment=4, layout=None)

    def read(place: int, number: Expr) -> Expr:
        if place not in moved:
            return number
        value = tensor[moved[place]]
        if isinstance(number, tirx.FloatImm):
            return value
        return cast(str(number.ty), reinterpret("int32", value))

    params = [*function.params[:place], tensor, *function.params[place:]]
    body = _each_number(function, read)
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def _each_number(
    function: tirx.PrimFunc,
    change: Callable[[int, Expr], Expr],
    trace: placeholders.Trace | None = None,
) -> tirx.Stmt:
    """Returns a body with `change(place, number)` for each number and each trace placeholder."""
    count = 0

    def changed(number: Expr) -> Expr:
        nonlocal count
        count += 1
        return change(count - 1, number)

    def real(number: tirx.FloatImm, _mutator: tvm_ffi.StructuralMutator) -> Expr:
        return changed(number) if str(number.ty) == "float32" else number

    def called(call: ir.Call, mutator: tvm_ffi.StructuralMutator) -> Expr:
        if str(call.ty) == "float32" and placeholders.number_of(call) is not None:
            return changed(call)
        return mutator.default_mutate(call)

    def splat(vector: tirx.Broadcast, mutator: tvm_ffi.StructuralMutator) -> Expr:
        def term(value: Expr) -> Expr:
            if isinstance(value, tirx.IntImm) or (trace and _placeholder(value, trace)):
                return changed(value)
            if isinstance(value, _TERMS):
                return type(value)(term(value.a), term(value.b))
            return mutator.mutate(value)

        if str(vector.value.ty) not in _INTEGERS:
            return mutator.default_mutate(vector)
        return tirx.Broadcast(term(vector.value), vector.lanes)

    callbacks: list[Any] = [(tirx.FloatImm, real), (tirx.Broadcast, splat)]
    if trace is not None:
        callbacks.append((ir.Call, called))
    return tvm_ffi.structural_mutate(function.body, callbacks)


def _placeholder(value: Expr, trace: placeholders.Trace) -> placeholders.Placeholder | None:
    """The placeholder that an expression stands for, or None."""
    number = placeholders.number_of(value) if isinstance(value, ir.Call) else None
    return None if number is None else trace.numbers[number]


def _bits(value: float, element: str) -> np.uint32:
    """The bits of a number as float32 or int32."""
    return (np.float32 if element == "float32" else np.int32)(value).view(np.uint32)


# Remembers a function's result for a region, for all regions that differ only in numbers.
#
#     config = FormMemo(lambda region: template.default_config(region, machine))
#     config(layer_1)     # calls the function
#     config(layer_2)     # remembers: only scales and zero points differ, and every decision about
#                         # them has the same outcome
#
# The function is called with placeholders for all numbers, which record its decisions.


T = TypeVar("T")


class FormMemo(Generic[T]):
    """Remembers the results of a function of regions.

    Parameters
    ----------
    function : callable
        Region -> result, which is not changed afterwards and depends on the region alone.
    """

    def __init__(self, function: Callable[[Region], T]) -> None:
        self.function = function
        self.known: dict[str, list[tuple[placeholders.Trace, T]]] = {}

    def __call__(self, region: Region) -> T:
        """The result for a region."""
        numbers = region_numbers(region)
        known = self.known.setdefault(region_form(region), [])
        for trace, result in known:
            if trace.holds(numbers):
                return result
        with_placeholders, trace = traced(region)
        try:
            result = self.function(with_placeholders)
        except (TvmHybridError, TypeError):  # code that needs real numbers
            return self.function(region)
        if _has_placeholder(result):
            return self.function(region)
        known.append((trace, result))
        return result


def _has_placeholder(value: Any) -> bool:
    """Whether a placeholder is anywhere in a result."""
    if dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, (tuple, list, set, frozenset)):
        parts = list(value)
    else:
        return isinstance(value, placeholders.Placeholder)
    return any(map(_has_placeholder, parts))
