"""What passes need of TVM 0.27 beyond its public interface: one function or constant for each need.

Who moves to another TVM looks here; `tests/relay_passes/test_tvm_compat.py` says what has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tvm import ir, relax
from tvm.relax.expr import _update_type
from tvm.runtime import Module

OP_PATTERN = "op_pattern"
"""A kernel's attribute by which FuseOps decides; AnnotateTIROpPattern leaves it if it is there. Its
values are the numbers of TVM's enumeration OpPatternKind, which Python does not see."""

OUT_ELEMENTWISE_FUSABLE = 4
"""kOutEWiseFusable: elementwise functions after this one are fused into it, but none before."""

OPAQUE = 8
"""kOpaque: FuseOps leaves the kernel alone."""

SLOW_PASSES = ("s_tir.HoistIfThenElse", "s_tir.InsertHoistIfThenElse")
"""Passes of TVM's lowering, by name: LLVM does their work as well."""

GPU_PASSES = (
    "s_tir.InferFragment",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectSoftwarePipeline",
    "s_tir.InjectVirtualThread",
    "s_tir.LiftThreadBinding",
    "s_tir.LowerAutoCopy",
    "s_tir.LowerThreadAllreduce",
    "s_tir.LowerVtcmAlloc",
    "s_tir.MergeSharedMemoryAllocations",
    "s_tir.ThreadSync",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.UnifyThreadBinding",
)
"""Passes of TVM's lowering, by name, that look for what no kernel for a CPU has: threads of a GPU,
its memories and its instructions."""

WITHOUT_CSE = {"tirx.disable_cse_tir": True}
"""A setting of PassContext: TVM does not look for common subexpressions in kernels."""

ENTRY_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")
"""Functions that VMShapeLower calls at a function's entry; each takes what it checks first."""

SYMBOL_PREFIX = "__tvm_ffi_"
"""What stands before a function's name in machine code."""


def set_type(expr: relax.Expr, ty: ir.Type) -> None:
    """Gives an expression that was just made its type; TVM's constructor of GlobalVar takes none.

    Needs `tvm.relax.expr._update_type`.
    """
    _update_type(expr, ty)


class _ThreadStack(threading.local):
    """A stack of its own in each thread."""

    def __init__(self) -> None:
        self._items: list[relax.BlockBuilder] = []

    def append(self, item: relax.BlockBuilder) -> None:
        self._items.append(item)

    def pop(self) -> relax.BlockBuilder:
        return self._items.pop()

    def __getitem__(self, place: int) -> relax.BlockBuilder:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)


def separate_builders() -> None:
    """Lets threads build Relax functions at the same time.

    TVM keeps the builders whose functions are being written in one list, and takes the last for the
    calling thread's. Its other stacks (targets, pass contexts, TIR builders) are the threads' own.

    Needs `relax.BlockBuilder._stack`, which is appended to, popped and read at -1, and is empty
    while nothing is built.
    """
    if isinstance(relax.BlockBuilder._stack, list) and not relax.BlockBuilder._stack:
        relax.BlockBuilder._stack = _ThreadStack()


def attrs_with(attrs: ir.Attrs, **changed: Any) -> ir.Attrs:
    """The same attributes of an operator, some with other values.

    Needs `__tvm_ffi_type_info__`, which names the fields of a class, and that `ir.make_node` makes
    an object of its key and all of its fields.
    """
    info = type(attrs).__tvm_ffi_type_info__
    values = {field.name: getattr(attrs, field.name) for field in info.fields}
    return ir.make_node(info.type_key, **{**values, **changed})


Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
"""What LegalizeOps calls for an operator."""


def legalize_by_tvm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's own legalisation of a call of an operator.

    Needs the operator's attribute FLegalize, which is what LegalizeOps calls.
    """
    return call.op.get_attr("FLegalize")(builder, call)


def emit_machine_code(module: Module) -> None:
    """Makes an LLVM module's machine code now, not when its first function is called.

    Needs that to look for any function does so, the module's function `get_func_names`, and that a
    function's symbol is its name behind a prefix.
    """
    symbols = module.get_function("get_func_names")()
    if len(symbols):
        module.get_function(str(symbols[0]).removeprefix(SYMBOL_PREFIX))
