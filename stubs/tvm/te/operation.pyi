from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from ..ir import Expr, Range
from ..tirx import Buffer, IterVar, PrimFunc, Stmt
from .tensor import Tensor

def placeholder(
    shape: Sequence[Expr | int], dtype: str | None = None, name: str = "placeholder"
) -> Tensor: ...
@overload
def compute(
    shape: Sequence[Expr | int],
    fcompute: Callable[..., Expr],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor: ...
@overload
def compute(
    shape: Sequence[Expr | int], fcompute: Callable[..., tuple[Expr, ...]], name: str = "compute"
) -> list[Tensor]: ...
def extern(
    shape: Sequence[Sequence[Expr | int]],
    inputs: Sequence[Tensor],
    fcompute: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt],
    name: str = "extern",
    dtype: Sequence[str] | None = None,
) -> list[Tensor]: ...
def reduce_axis(dom: Range | tuple[Expr | int, Expr | int], name: str = "rv") -> IterVar: ...
def create_prim_func(ops: Sequence[Tensor]) -> PrimFunc: ...
