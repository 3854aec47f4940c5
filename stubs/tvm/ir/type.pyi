from collections.abc import Sequence

from tvm_ffi import dtype

from ..runtime.script_printer import Scriptable
from .base import Node

class Type(Node, Scriptable):
    @staticmethod
    def missing() -> Type: ...
    def is_missing(self) -> bool: ...

class PrimType(Type):
    dtype: dtype
    def __init__(self, dtype: str) -> None: ...

class PointerType(Type):
    element_type: Type
    storage_scope: str
    def __init__(self, element_type: Type, storage_scope: str = "") -> None: ...

class TupleType(Type):
    fields: Sequence[Type]
    def __init__(self, fields: Sequence[Type]) -> None: ...
