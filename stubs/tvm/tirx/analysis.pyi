from collections.abc import Sequence

from ..ir import Expr, Var
from .stmt import Stmt

def undefined_vars(node: Stmt | Expr, defs: Sequence[Var] | None = None) -> Sequence[Var]: ...
