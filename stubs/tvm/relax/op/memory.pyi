from collections.abc import Sequence

from ...ir import Expr

def view(
    data: Expr, shape: Sequence[int | Expr] | Expr | None = None, dtype: str | Expr | None = None
) -> Expr: ...
