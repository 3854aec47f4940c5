from typing import Any

from tvm_ffi import Object

from ..ir import IRModule
from ..tirx import PrimFunc

class Trace(Object):
    def __getattr__(self, name: str) -> Any: ...

# This stub leaves out its 80 primitives.
class Schedule(Object):
    def __init__(self, mod: PrimFunc | IRModule) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    @property
    def mod(self) -> IRModule: ...
    @property
    def trace(self) -> Trace | None: ...

class ScheduleError(Exception): ...
