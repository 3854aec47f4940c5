from collections.abc import Mapping, Sequence

from tvm_ffi import Object

from ..ir import BaseFunc, DictAttrs, Expr, Type, Var
from .stmt import Stmt

class PrimFunc(BaseFunc):
    params: Sequence[Var]
    body: Stmt
    ret_type: Type
    def __init__(
        self,
        params: Sequence[Var],
        body: Stmt,
        ret_type: Type | None = None,
        attrs: DictAttrs | None = None,
    ) -> None: ...
    def with_body(self, new_body: Stmt) -> PrimFunc: ...
    def specialize(self, param_map: Mapping[Var, Expr]) -> PrimFunc: ...

class IndexMap(Object):
    initial_indices: Sequence[Var]
    final_indices: Sequence[Expr]
    def map_indices(self, indices: Sequence[Expr]) -> Sequence[Expr]: ...
