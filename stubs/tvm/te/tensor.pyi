from collections.abc import Sequence

from tvm_ffi import Object
from tvm_ffi import dtype as DataType

from ..ir import Expr
from ..tirx import IterVar

class Operation(Object):
    name: str

class ComputeOp(Operation):
    axis: Sequence[IterVar]
    body: Sequence[Expr]

class Tensor(Expr):
    shape: Sequence[Expr]
    dtype: DataType
    op: Operation
    value_index: int
    @property
    def ndim(self) -> int: ...
    def __call__(self, *indices: Expr | int) -> Expr: ...
