from typing import Any

from tvm_ffi import Object

from ..schedule import Schedule

class ScheduleRule(Object):
    @staticmethod
    def create(kind: str) -> list[ScheduleRule]: ...

# What is derived from it becomes a ScheduleRule by `derived_object`.
class PyScheduleRule:
    def __init__(self) -> None: ...
    def apply(self, sch: Schedule, block: Any) -> list[Schedule]: ...
    def clone(self) -> ScheduleRule: ...
