from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from tvm_ffi import Object

from ..ir import Expr, Range, StringImm, TensorRegion, Var
from ..runtime.script_printer import Scriptable
from .expr import IterVar

class Stmt(Object, Scriptable): ...

class Bind(Stmt):
    var: Var
    value: Expr
    def __init__(self, var: Var, value: Expr) -> None: ...

class AssertStmt(Stmt):
    condition: Expr
    error_kind: StringImm
    message_parts: Sequence[StringImm]
    def __init__(
        self, kind: StringImm, condition: Expr, message_parts: Sequence[StringImm] | None = None
    ) -> None: ...

class ForKind(IntEnum):
    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3

class For(Stmt):
    loop_var: Var
    min: Expr
    extent: Expr
    kind: ForKind
    body: Stmt
    thread_binding: IterVar | None
    annotations: Mapping[str, Any]
    step: Expr | None
    def __init__(
        self,
        loop_var: Var,
        min: Expr | int,
        extent: Expr | int,
        kind: ForKind,
        body: Stmt,
        thread_binding: IterVar | None = None,
        annotations: Mapping[str, Any] | None = None,
        step: Expr | None = None,
    ) -> None: ...

class While(Stmt):
    condition: Expr
    body: Stmt
    def __init__(self, condition: Expr, body: Stmt) -> None: ...

class BufferStore(Stmt):
    buffer: Var
    value: Expr
    indices: Sequence[Expr]
    def __init__(self, buffer: Var, value: Expr, indices: Sequence[Expr]) -> None: ...

class AllocBuffer(Stmt):
    buffer: Var
    annotations: Mapping[str, Any]
    def __init__(self, buffer: Var, annotations: Mapping[str, Any] | None = None) -> None: ...

class DeclBuffer(Stmt):
    buffer: Var
    data: Expr | None
    def __init__(self, buffer: Var, *, data: Expr | None = None) -> None: ...

class AttrStmt(Stmt):
    node: Any
    attr_key: str
    value: Expr
    body: Stmt
    def __init__(self, node: Any, attr_key: str, value: Expr | float | str, body: Stmt) -> None: ...

class Return(Stmt):
    value: Expr
    def __init__(self, value: Expr) -> None: ...

class SeqStmt(Stmt):
    seq: Sequence[Stmt]
    def __init__(self, seq: Sequence[Stmt]) -> None: ...
    def __getitem__(self, i: int) -> Stmt: ...
    def __len__(self) -> int: ...

class IfThenElse(Stmt):
    condition: Expr
    then_case: Stmt
    else_case: Stmt | None
    def __init__(self, condition: Expr, then_case: Stmt, else_case: Stmt | None) -> None: ...

class Evaluate(Stmt):
    value: Expr
    def __init__(self, value: Expr | int) -> None: ...

def BufferRegion(buffer: Var, region: Sequence[Range]) -> TensorRegion: ...
