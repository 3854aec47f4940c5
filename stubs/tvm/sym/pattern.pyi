from collections.abc import Sequence

from ..ir import Expr, Var

def detect_linear_equation(expr: Expr, var_list: Sequence[Var]) -> Sequence[Expr]: ...
