from ...ir.transform import Pass
from ...target import Target
from ...tirx import PrimFunc
from ..schedule import Schedule

class ScheduleRule:
    def apply(
        self, func: PrimFunc, target: Target, tunable: bool
    ) -> Schedule | list[Schedule] | None: ...

class ApplyDefaultSchedule(Pass):
    def __init__(self, *rules: ScheduleRule) -> None: ...
