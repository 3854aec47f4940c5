"""What kernels need of TVM 0.27 beyond its public interface: one function or constant each.

`tests/microkernels/base/tvm_compat/test_tir.py` shows what another version of TVM changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm.ir import Call, Op, PrimType, expr
from tvm.target import codegen
from tvm.tirx import Expr
from tvm.tirx.buffer import BufferType
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
    """Returns a function that walks an expression in pre-order with callbacks.

    `structural_walk` checks and converts its callbacks at every call, which takes longer than to
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
        Makes the expression that replaces a call.
    """
    tvm_ffi.get_global_func("ir.RegisterOp")(name, "")
    operator, example = Op.get(name), Op.get("tirx.exp")
    operator.set_num_inputs(arity)
    for attribute in ("TCallEffectKind", "TVectorizable"):
        operator.set_attr(attribute, example.get_attr(attribute))
    operator.set_attr("TScriptPrinterName", name)
    register_intrin_lowering(name, "llvm", f=lower)
    return operator


_MOST_TYPES = 1 << 12


def quick_expressions() -> None:
    """Lets Python write expressions of TIR in half of the time.

    TVM makes a string of a type whenever its elements or lanes are read, and looks at the
    operands of arithmetic and at indices in Python. A kernel has thousands of each.

    Needs `PrimType.dtype`, which never changes; the global functions `prim._OpAdd` and the like,
    which operators call in the end, and `ir.SubscriptExprRealize`, which `Expr.__getitem__` calls;
    and `codegen.llvm_lookup_intrinsic_id`.
    """
    if type(vars(PrimType)["dtype"]) is property:
        return
    read = vars(PrimType)["dtype"].__get__
    known: dict[int, tuple[PrimType, Any]] = {}  # by address: the object is kept

    def dtype(self: Any) -> Any:
        found = known.get(self.__chandle__())
        if found is None:
            if len(known) >= _MOST_TYPES:
                known.clear()
            found = known[self.__chandle__()] = self, read(self)
        return found[1]

    PrimType.dtype = property(dtype)  # type: ignore[assignment]
    operand: Any = expr.ExprOperand

    def is_number(value: Any) -> bool:
        return isinstance(value, operand) and type(value.ty) is PrimType

    def operator(name: str, turned: bool) -> None:
        method = f"__{'r' * turned}{name}__"
        whole, make = getattr(operand, method), tvm_ffi.get_global_func(f"prim._Op{name.title()}")

        def operate(self: Any, other: Any) -> Any:
            if type(self.ty) is PrimType and (is_number(other) or type(other) in (int, float)):
                return make(other, self, None) if turned else make(self, other, None)
            return whole(self, other)

        setattr(operand, method, operate)

    for name in ("add", "sub", "mul"):
        operator(name, False)
        operator(name, True)
    subscripted = expr.Expr.__getitem__
    realize = tvm_ffi.get_global_func("ir.SubscriptExprRealize")

    def getitem(self: Any, index: Any) -> Any:
        places = list(index) if type(index) in (tuple, list) else [index]
        if type(self.ty) is BufferType and all(map(is_number, places)):
            return realize(self, places, None)
        return subscripted(self, index)

    expr.Expr.__getitem__ = getitem  # type: ignore[method-assign]
    codegen.llvm_lookup_intrinsic_id = functools.cache(codegen.llvm_lookup_intrinsic_id)
