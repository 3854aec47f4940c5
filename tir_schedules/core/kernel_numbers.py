"""Replaces the f32 constants of a kernel by a parameter, so that similar kernels become one.

Before

    def matmul(A, W, C):
        C[...] = A[...] * T.Broadcast(T.float32(0.0107), 16)

After `numbers_as_parameter(matmul, {0: 0}, place=2)`

    def matmul(A, W, S: T.Buffer((1,)), C):
        C[...] = A[...] * T.Broadcast(S[0], 16)

This costs nothing: machine code reads a constant from memory, too. `tirx.noalias` says that no
other pointer reaches the parameter, so LLVM places its load where that of the constant would be.
Constants are numbered in the order of TVM's structural traversal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm_ffi
from tvm import tirx

from microkernels.vector.expressions import Expr


def numbers_of(function: tirx.PrimFunc) -> tuple[float, ...]:
    """The f32 numbers in a kernel's body, in order."""
    found: list[float] = []

    def look(place: int, number: tirx.FloatImm) -> Expr:
        found.append(float(number.value))
        return number

    _each_number(function.body, look)
    return tuple(found)


def without_numbers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with zero for every f32 number: equal for kernels that differ in nothing else."""
    zero = tirx.FloatImm("float32", 0.0)
    body = _each_number(function.body, lambda place, number: zero)
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

    def read(place: int, number: tirx.FloatImm) -> Expr:
        return tensor[moved[place]] if place in moved else number

    params = [*function.params[:place], tensor, *function.params[place:]]
    body = _each_number(function.body, read)
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def _each_number(body: tirx.Stmt, change: Callable[[int, tirx.FloatImm], Expr]) -> tirx.Stmt:
    """A body with every f32 number replaced by what `change(its place, it)` gives."""
    count = 0

    def visit(number: tirx.FloatImm) -> Expr:
        nonlocal count
        if str(number.ty) != "float32":
            return number
        count += 1
        return change(count - 1, number)

    return tvm_ffi.structural_map(body, (tirx.FloatImm, visit))
