from collections.abc import Sequence
from typing import Any

from ..ir import Expr, PrimType, Type, Var

Buffer = Var

class BufferType(Type):
    dtype: PrimType
    storage_scope: str
    shape: Sequence[Expr]
    strides: Sequence[Expr]
    elem_offset: Expr
    data_alignment: int
    offset_factor: int
    layout: Any

def is_buffer_var(value: object) -> bool: ...
def decl_buffer(
    shape: Sequence[Expr | int],
    dtype: str | None = None,
    name: str = "buffer",
    data: Expr | None = None,
    strides: Sequence[Expr | int] | None = None,
    elem_offset: Expr | int | None = None,
    scope: str = "",
    data_alignment: int = -1,
    offset_factor: int = 0,
    *,
    layout: Any = "default",
) -> Buffer: ...
