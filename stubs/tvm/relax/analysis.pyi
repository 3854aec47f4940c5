from collections.abc import Callable

from ..ir import Expr
from ..tirx import PrimFunc

def post_order_visit(expr: Expr, fvisit: Callable[[Expr], object]) -> None: ...
def has_reshape_pattern(func: PrimFunc) -> bool: ...
