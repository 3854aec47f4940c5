"""Replaces the constants of a kernel by a parameter, so that similar kernels become one.

Before

    def matmul(A, W, C):
        C[...] = A[...] * T.Broadcast(T.float32(0.0107), 16)

After `numbers_as_parameter(matmul, {0: 0}, place=2)`

    def matmul(A, W, S: T.Buffer((1,)), C):
        C[...] = A[...] * T.Broadcast(S[0], 16)

This costs nothing: machine code reads a constant from memory, too. `tirx.noalias` says that no
other pointer reaches the parameter, so LLVM places its load where that of the constant would be.
Constants are the f32 numbers, and those integers that are terms of what all lanes of a vector get,
which is where zero points are. The parameter has their bits, as int32. Constants are numbered in
the order of TVM's structural traversal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tvm_ffi
from tvm import tirx

from microkernels.vector.expressions import Expr, cast, reinterpret

Number = tirx.FloatImm | tirx.IntImm
_INTEGERS = ("int16", "int32")
_TERMS = (tirx.Add, tirx.Sub, tirx.Mul)


def numbers_of(function: tirx.PrimFunc) -> tuple[np.uint32, ...]:
    """The bits of the numbers in a kernel's body, in order."""
    found: list[np.uint32] = []

    def look(place: int, number: Number) -> Expr:
        exact = np.float32 if isinstance(number, tirx.FloatImm) else np.int32
        found.append(exact(number.value).view(np.uint32))
        return number

    _each_number(function, look)
    return tuple(found)


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
        Of the new parameter among the others: a float32 tensor as long as `moved` needs it.
    """
    length = 1 + max(moved.values())
    tensor = tirx.decl_buffer((length,), "float32", "S", data_alignment=4, layout=None)

    def read(place: int, number: Number) -> Expr:
        if place not in moved:
            return number
        value = tensor[moved[place]]
        if isinstance(number, tirx.FloatImm):
            return value
        return cast(str(number.ty), reinterpret("int32", value))

    params = [*function.params[:place], tensor, *function.params[place:]]
    body = _each_number(function, read)
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def _each_number(function: tirx.PrimFunc, change: Callable[[int, Number], Expr]) -> tirx.Stmt:
    """A body with every number replaced by what `change(its place, it)` gives."""
    count = 0

    def changed(number: Number) -> Expr:
        nonlocal count
        count += 1
        return change(count - 1, number)

    def real(number: tirx.FloatImm, _mutator: tvm_ffi.StructuralMutator) -> Expr:
        return changed(number) if str(number.ty) == "float32" else number

    def splat(vector: tirx.Broadcast, mutator: tvm_ffi.StructuralMutator) -> Expr:
        def term(value: Expr) -> Expr:
            if isinstance(value, tirx.IntImm):
                return changed(value)
            if isinstance(value, _TERMS):
                return type(value)(term(value.a), term(value.b))
            return mutator.mutate(value)

        if str(vector.value.ty) not in _INTEGERS:
            return mutator.default_mutate(vector)
        return tirx.Broadcast(term(vector.value), vector.lanes)

    callbacks = [(tirx.FloatImm, real), (tirx.Broadcast, splat)]
    return tvm_ffi.structural_mutate(function.body, callbacks)
