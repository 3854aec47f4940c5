"""Flat TIR: a function as TVM lowers it for LLVM, and small questions about its nodes."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import DataType, s_tir, tirx
from tvm.target import Target, codegen


def lowered(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A function with flat arrays, explicit vectors, and its unrolled loops written out."""
    function = function.with_attr("target", target)
    transform, general = s_tir.transform, tirx.transform
    passes = [
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerMatchBuffer(),
        transform.LowerOpaqueBlock(),
        general.FlattenBuffer(),
        general.BF16ComputeLegalize(),
        general.VectorizeLoop(True),
        general.UnrollLoop(),
    ]
    with target, tvm.ir.transform.PassContext(opt_level=3):
        module = tvm.ir.transform.Sequential(passes)(tvm.IRModule({"kernel": function}))
    return module["kernel"]


def key(node: Any) -> int:
    """What tells one node from another."""
    return int(node.__chandle__())


def base_of(node: tirx.DeclBuffer) -> Any:
    """The array that a view shows."""
    data: Any = node.data
    while getattr(getattr(data, "op", None), "name", "") == "tirx.buffer_data":
        data = data.args[0]
    return data


def is_constant(index: Any) -> bool:
    """Whether an index depends on no variable."""
    if type(index).__name__ == "Ramp":
        index = index.base
    if type(index).__name__ in ("Broadcast", "Cast"):
        index = index.value
    if type(index).__name__ in ("Add", "Mul", "Sub", "FloorDiv", "FloorMod"):
        return is_constant(index.a) and is_constant(index.b)
    return type(index).__name__ == "IntImm"


def size_of(var: Any) -> int:
    """Bytes of an array."""
    dtype = DataType(str(var.dtype))
    size = (int(dtype.bits) * int(dtype.lanes) + 7) // 8
    for extent in var.ty.shape:
        size *= int(extent.value) if hasattr(extent, "value") else 1
    return size


def intrinsic(node: Any) -> str:
    """The name of what a call of an intrinsic or of a function calls."""
    first = node.args[0]
    if type(first).__name__ == "StringImm":
        return str(first.value)
    return str(codegen.llvm_get_intrinsic_name(int(first.value)))
