from collections.abc import Sequence

from ..ir import Expr, PrimType, Type

class AnyType(Type): ...

class ShapeType(Type):
    values: Sequence[Expr] | None
    ndim: int
    def __init__(self, values: Sequence[Expr | int] | None = None, ndim: int = -1) -> None: ...

class TensorType(Type):
    shape: Expr | None
    dtype: PrimType | None
    ndim: int
    def __init__(
        self,
        shape: Expr | Sequence[Expr | int] | None = None,
        dtype: str | PrimType | None = "float32",
        *,
        ndim: int = -1,
    ) -> None: ...

class FuncType(Type):
    params: Sequence[Type] | None
    ret: Type
