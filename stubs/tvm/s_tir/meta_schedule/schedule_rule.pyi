from typing import Any

from tvm_ffi import Object

from ..schedule import Schedule

class ScheduleRule(Object):
    @staticmethod
    def create(kind: str) -> list[ScheduleRule]: ...

# `derived_object` turns a derived class into a ScheduleRule.
class PyScheduleRule:
    def __init__(self) -> None: ...
    def apply(self, sch: Schedule, block: Any) -> list[Schedule]: ...
    def clone(self) -> ScheduleRule: ...
