"""Lets a kernel store its result as a part of a larger tensor, at no cost.

Before

    def matmul(A: T.Buffer((1, 56, 56, 64)), W: ..., C: T.Buffer((1, 56, 56, 64))):
        C[n, y, x, 0:16] = ...

After

    def matmul(A: T.Buffer((1, 56, 56, 64)), W: ..., J: T.Buffer((1, 56, 56, 128))):
        C = T.decl_buffer((1, 56, 56, 64), data=J.data, strides=(401408, 7168, 128, 1),
                          elem_offset=64)
        C[n, y, x, 0:16] = ...

No template knows of this. Kernels that need rows directly one after the other are refused: AMX
tiles that are stored directly, and views of the result that have no strides, or whose elements lie
apart along the last axis, where vectors are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.ir import Call

from tir_schedules.core.emission import with_body, with_children
from tir_schedules.core.placement import Placement
from tir_schedules.core.size import SymbolicSize
from tir_schedules.generic.expressions import call_name, is_call, substitute


def place_output(
    function: tirx.PrimFunc, result: Sequence[int], shape: Sequence[int], placement: Placement
) -> tirx.PrimFunc | str:
    """A kernel that stores its result within a tensor of another shape.

    Parameters
    ----------
    function : PrimFunc
        Its last parameter is its result.
    result : sequence of int
        The shape of the result.
    shape : sequence of int
        Of the tensor that the result is a part of, the new last parameter.
    placement : Placement
        Where the result lies in it.

    Returns
    -------
    PrimFunc or str
        A str says why the kernel cannot.
    """
    function = s_tir.renew_defs(function)
    *inputs, out = function.params
    align = max(1, DataType(str(out.dtype)).itemsize)
    joint_shape = _with_variables(shape, result, out)
    joint = tirx.decl_buffer(joint_shape, out.dtype, "J", data_alignment=align, layout=None)
    if not {*_variables(out)} <= {each for told in (*inputs, joint) for each in _variables(told)}:
        return "its result alone tells its size"
    views: dict[tirx.Var, tirx.Var] = {}
    buffers = [out, *_aliases(function, out)]
    if _passes_address(function, buffers):
        return "its kernel passes the result's address on"
    for buffer in buffers:
        extents = tuple(getattr(extent, "value", extent) for extent in buffer.shape)
        strides = placement.strides_of(extents)
        apart = strides is not None and extents[-1:] != (1,) and strides[-1:] != (1,)
        if strides is None or apart or len(buffer.strides):
            return f"its kernel stores it as {'x'.join(map(str, extents))}"
        views[buffer] = tirx.decl_buffer(
            extents,
            out.dtype,
            "C",
            data=joint.data,
            strides=strides,
            elem_offset=placement.offset,
            data_alignment=align,
            layout=None,
        )

    def declared_anew(declaration: tirx.DeclBuffer) -> tirx.Stmt:
        view = views.get(declaration.buffer)
        return declaration if view is None else tirx.DeclBuffer(view, data=joint.data)

    body = tvm_ffi.structural_map(function.body, (tirx.DeclBuffer, declared_anew))
    body = substitute(body, views)
    own = tirx.DeclBuffer(views[out], data=joint.data)
    if isinstance(body, s_tir.SBlockRealize):
        inside = tirx.SeqStmt([own, body.block.body])
        body = with_children(body, [with_body(body.block, inside, body.block.annotations)])
    else:
        body = tirx.SeqStmt([own, body])
    return tirx.PrimFunc([*inputs, joint], body, function.ret_type, function.attrs)


def _with_variables(
    shape: Sequence[int], result: Sequence[int], out: tirx.Var
) -> tuple[int | tirx.Var, ...]:
    """A shape whose symbolic sizes are the variables of a kernel's result, or new ones."""
    found: dict[int, Any] = {}
    if len(result) == len(out.shape):
        found = dict(zip(result, out.shape, strict=True))
    for size in shape:
        if isinstance(size, SymbolicSize):
            found.setdefault(size, tirx.Var(f"j{len(found)}", "int64"))
    return tuple(found[size] if isinstance(size, SymbolicSize) else size for size in shape)


def _variables(buffer: tirx.Var) -> list[tirx.Var]:
    """What a buffer's shape tells."""
    return [extent for extent in buffer.shape if isinstance(extent, tirx.Var)]


def _aliases(function: tirx.PrimFunc, out: tirx.Var) -> list[tirx.Var]:
    """Buffers declared in the memory of another."""
    declared: list[tirx.DeclBuffer] = []
    tvm_ffi.structural_walk(function.body, (tirx.DeclBuffer, declared.append))
    return [each.buffer for each in declared if _is_data_of(each.data, out)]


def _passes_address(function: tirx.PrimFunc, buffers: Sequence[tirx.Var]) -> bool:
    """Whether an address within buffers is used but to declare all of them after the first."""
    taken, declared = 0, len(buffers) - 1

    def look(call: Call) -> None:
        nonlocal taken
        inside = call.args[0].source if call_name(call) == "address_of" else None
        for buffer in buffers:
            if inside is not None and inside.same_as(buffer):
                taken += 1 + declared
            taken += _is_data_of(call, buffer)

    tvm_ffi.structural_walk(function.body, (Call, look))
    return taken > declared


def _is_data_of(expr: object, buffer: tirx.Var) -> bool:
    """Whether an expression is the address where a buffer begins."""
    return isinstance(expr, Call) and is_call(expr, "buffer_data") and expr.args[0].same_as(buffer)
