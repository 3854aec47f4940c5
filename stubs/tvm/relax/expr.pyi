from collections.abc import Mapping, Sequence
from typing import Any

from tvm_ffi import dtype as DataType

from ..ir import BaseFunc, DictAttrs, Expr, GenericConst, GlobalVar, Node, Type, Var
from ..ir.expr import ExprWithOp
from ..runtime.script_printer import Scriptable

class If(ExprWithOp):
    cond: Expr
    true_branch: SeqExpr
    false_branch: SeqExpr
    def __init__(self, cond: Expr, true_branch: Expr, false_branch: Expr) -> None: ...

class ShapeExpr(ExprWithOp):
    values: Sequence[Expr]
    def __init__(self, values: Sequence[Expr | int]) -> None: ...
    def __getitem__(self, index: int) -> Expr: ...
    def __len__(self) -> int: ...

class DataflowVar(Var): ...

class Binding(Node, Scriptable):
    var: Var

class MatchCast(Binding):
    value: Expr
    ty: Type
    def __init__(self, var: Var, value: Expr, ty: Type) -> None: ...

class VarBinding(Binding):
    value: Expr
    def __init__(self, var: Var, value: Expr) -> None: ...

class BindingBlock(Node, Scriptable):
    bindings: Sequence[VarBinding | MatchCast]
    def __init__(self, bindings: Sequence[Binding]) -> None: ...

class DataflowBlock(BindingBlock): ...

class SeqExpr(ExprWithOp):
    blocks: Sequence[BindingBlock]
    body: Expr
    def __init__(self, blocks: Sequence[BindingBlock], body: Expr) -> None: ...

class Function(BaseFunc):
    params: Sequence[Var]
    body: SeqExpr
    ret_ty: Type
    is_pure: bool
    def __init__(
        self,
        params: Sequence[Var],
        body: Expr,
        ret_ty: Type | None = None,
        is_pure: bool | None = True,
        attrs: DictAttrs | None = None,
    ) -> None: ...
    @staticmethod
    def create_empty(params: list[Var], ret_ty: Type, is_pure: bool | None = True) -> Function: ...
    def bind_symbolic_vars(
        self, binding_map: Mapping[str, Expr | int] | Mapping[Var, Expr | int]
    ) -> Function: ...
    def bind_params(self, binding_map: Mapping[str, Any] | Mapping[Var, Any]) -> Function: ...
    def inline_functions(self, function_map: Mapping[GlobalVar, Function]) -> Function: ...

class ExternFunc(BaseFunc):
    global_symbol: str
    def __init__(self, global_symbol: str, ty: Type | None = None) -> None: ...

def prim_value(value: Expr | float, dtype: str | None = None) -> Expr: ...
def const(value: Any, dtype: str | DataType | None = None) -> GenericConst: ...
def _update_type(expr: Expr, ty: Type | None) -> None: ...
