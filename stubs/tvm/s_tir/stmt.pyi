from collections.abc import Mapping, Sequence
from typing import Any

from tvm_ffi import Object

from ..ir import Expr, TensorRegion
from ..tirx import Buffer, IterVar, Stmt

class MatchBufferRegion(Object):
    buffer: Buffer
    source: TensorRegion
    def __init__(self, buffer: Buffer, source: TensorRegion) -> None: ...

class SBlock(Stmt):
    iter_vars: Sequence[IterVar]
    reads: Sequence[TensorRegion]
    writes: Sequence[TensorRegion]
    name_hint: str
    body: Stmt
    init: Stmt | None
    alloc_buffers: Sequence[Buffer]
    match_buffers: Sequence[MatchBufferRegion]
    annotations: Mapping[str, Any]
    def __init__(
        self,
        iter_vars: Sequence[IterVar],
        reads: Sequence[TensorRegion],
        writes: Sequence[TensorRegion],
        name_hint: str,
        body: Stmt,
        init: Stmt | None = None,
        alloc_buffers: Sequence[Buffer] | None = None,
        match_buffers: Sequence[MatchBufferRegion] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None: ...

class SBlockRealize(Stmt):
    iter_values: Sequence[Expr]
    predicate: Expr
    block: SBlock
    def __init__(
        self, iter_values: Sequence[Expr], predicate: Expr | bool, block: SBlock
    ) -> None: ...
