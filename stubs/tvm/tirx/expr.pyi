from collections.abc import Sequence
from typing import ClassVar

from tvm_ffi import Object

from ..ir import Constant, Expr, PrimType, Range, TensorLoad, Var
from ..ir.expr import ExprOperand, ExprWithOp

class BinaryOpExpr(ExprWithOp):
    a: Expr
    b: Expr
    def __init__(self, a: Expr | float, b: Expr | float) -> None: ...

class CmpExpr(ExprWithOp):
    a: Expr
    b: Expr
    def __init__(self, a: Expr | float, b: Expr | float) -> None: ...

class LogicalExpr(ExprWithOp): ...
class Add(BinaryOpExpr): ...
class Sub(BinaryOpExpr): ...
class Mul(BinaryOpExpr): ...
class Div(BinaryOpExpr): ...
class Mod(BinaryOpExpr): ...
class FloorDiv(BinaryOpExpr): ...
class FloorMod(BinaryOpExpr): ...
class Min(BinaryOpExpr): ...
class Max(BinaryOpExpr): ...
class EQ(CmpExpr): ...
class NE(CmpExpr): ...
class LT(CmpExpr): ...
class LE(CmpExpr): ...
class GT(CmpExpr): ...
class GE(CmpExpr): ...

class And(LogicalExpr):
    a: Expr
    b: Expr
    def __init__(self, a: Expr, b: Expr) -> None: ...

class Or(LogicalExpr):
    a: Expr
    b: Expr
    def __init__(self, a: Expr, b: Expr) -> None: ...

class Not(LogicalExpr):
    a: Expr
    def __init__(self, a: Expr) -> None: ...

class Select(ExprWithOp):
    condition: Expr
    true_value: Expr
    false_value: Expr
    def __init__(
        self, condition: Expr, true_value: Expr | float, false_value: Expr | float
    ) -> None: ...

class Cast(ExprWithOp):
    value: Expr
    def __init__(self, dtype: str | PrimType, value: Expr | float) -> None: ...

class Let(ExprWithOp):
    var: Var
    value: Expr
    body: Expr
    def __init__(self, var: Var, value: Expr, body: Expr) -> None: ...

class Broadcast(ExprWithOp):
    value: Expr
    lanes: Expr
    def __init__(self, value: Expr, lanes: Expr | int) -> None: ...

class Ramp(ExprWithOp):
    base: Expr
    stride: Expr
    lanes: Expr
    def __init__(self, base: Expr | int, stride: Expr | int, lanes: Expr | int) -> None: ...

class Shuffle(ExprWithOp):
    vectors: Sequence[Expr]
    indices: Sequence[Expr]
    def __init__(self, vectors: Sequence[Expr], indices: Sequence[Expr | int]) -> None: ...

class IntImm(Constant):
    value: int
    def __init__(self, dtype: str | PrimType, value: int) -> None: ...

class FloatImm(Constant):
    value: float
    def __init__(self, dtype: str | PrimType, value: float) -> None: ...

# Represents its variable, but is not an Expr; it has an Expr's operators.
class IterVar(ExprOperand, Object):
    DataPar: ClassVar[int]
    CommReduce: ClassVar[int]
    dom: Range
    var: Var
    iter_type: int
    thread_tag: str
    def __init__(
        self, dom: Range, var: Var | str, iter_type: int, thread_tag: str = ""
    ) -> None: ...

class CommReducer(Object):
    lhs: Sequence[Var]
    rhs: Sequence[Var]
    result: Sequence[Expr]
    identity_element: Sequence[Expr]

class Reduce(ExprWithOp):
    combiner: CommReducer
    source: Sequence[Expr]
    init: Sequence[Expr]
    axis: Sequence[IterVar]
    condition: Expr
    value_index: int

def BufferLoad(buffer: Var, indices: Sequence[Expr | int]) -> TensorLoad: ...
def const(value: float, dtype: str | PrimType | None = None) -> Expr: ...
