from typing import Any

from tvm_ffi import Object

from ...tirx import PrimFunc

class ArgInfo(Object):
    def as_json(self) -> Any: ...
    @staticmethod
    def from_prim_func(func: PrimFunc) -> list[ArgInfo]: ...
