"""What kernels need of TVM 0.27 beyond its public interface: one function or constant each.

`tests/microkernels/base/tvm_compat/test_tir.py` tells what another TVM has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm.ir import Call, Op
from tvm.tirx import Expr
from tvm.tirx.op import register_intrin_lowering

NO_ALIAS = {"tirx.noalias": True}
"""An attribute of kernels: no two parameters overlap, so LLVM may load before it stores."""

IMPORT_LLVM = "pragma_import_llvm"
"""An attribute of statements: text in LLVM's language, linked to the code of the kernel."""


@contextmanager
def llvm_functions(*texts: str) -> Iterator[None]:
    """A scope of a kernel that may call functions written in LLVM's language.

    Needs the attribute `IMPORT_LLVM`, which TVM's code generator for LLVM looks for.

    Parameters
    ----------
    *texts
        Definitions of the functions; empty texts are left out.
    """
    with ExitStack() as stack:
        for text in filter(None, texts):
            stack.enter_context(I.attr(0, IMPORT_LLVM, text))
        yield


def walker(*callbacks: tuple[type, Callable[[Any], Any]]) -> Callable[[Expr], object]:
    """Returns what walks an expression in pre-order, as `structural_walk` with these callbacks.

    `structural_walk` checks and converts its callbacks anew each time, which takes longer than to
    walk through a small expression.

    Needs `tvm_ffi.structural._callback_type_to_type_index` and the global function of the walk,
    which takes callbacks by the numbers of their classes, those for definitions, and the order.
    """
    structural: Any = tvm_ffi.structural
    number, walk = structural._callback_type_to_type_index, structural._ffi_api.StructuralWalk
    entries = tvm_ffi.convert([(number(kind, api_name="walk"), call) for kind, call in callbacks])
    return lambda root: walk(root, entries, [], int(tvm_ffi.WalkOrder.PREORDER))


def register_elementwise(name: str, arity: int, lower: Callable[[Call], Expr]) -> Op:
    """Adds a pure operator of TIR, which TVM's vectoriser widens.

    Needs the attributes of operators that TVM's vectoriser and analyses of effects read. `lower`
    gets a call at the very end of TVM's lowering, when it is known how many lanes it has.

    Parameters
    ----------
    name : str
        It begins with "tirx."; an operator is registered once.
    arity : int
        Number of arguments.
    lower : callable
        What LLVM's code is made of instead of a call.
    """
    tvm_ffi.get_global_func("ir.RegisterOp")(name, "")
    operator, example = Op.get(name), Op.get("tirx.exp")
    operator.set_num_inputs(arity)
    for attribute in ("TCallEffectKind", "TVectorizable"):
        operator.set_attr(attribute, example.get_attr(attribute))
    operator.set_attr("TScriptPrinterName", name)
    register_intrin_lowering(name, "llvm", f=lower)
    return operator
