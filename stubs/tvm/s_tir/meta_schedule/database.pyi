from collections.abc import Sequence
from typing import Any

from tvm_ffi import Object

from ...ir import IRModule
from ...target import Target
from ..schedule import Trace
from .arg_info import ArgInfo

class Workload(Object):
    mod: IRModule
    def __init__(self, mod: IRModule) -> None: ...
    def as_json(self) -> Any: ...
    @staticmethod
    def from_json(json_obj: Any) -> Workload: ...

class TuningRecord(Object):
    trace: Trace
    workload: Workload
    run_secs: Sequence[float] | None
    target: Target | None
    args_info: Sequence[ArgInfo] | None
    def __init__(
        self,
        trace: Trace,
        workload: Workload,
        run_secs: Sequence[float] | None = None,
        target: Target | None = None,
        args_info: Sequence[ArgInfo] | None = None,
    ) -> None: ...
    def as_json(self) -> Any: ...
    @staticmethod
    def from_json(json_obj: Any, workload: Workload) -> TuningRecord: ...

class JSONDatabase(Object):
    def __init__(
        self,
        path_workload: str | None = None,
        path_tuning_record: str | None = None,
        *,
        work_dir: str | None = None,
        module_equality: str = "structural",
    ) -> None: ...
    def commit_workload(self, mod: IRModule) -> Workload: ...
    def commit_tuning_record(self, record: TuningRecord) -> None: ...
    def get_all_tuning_records(self) -> list[TuningRecord]: ...
    def query_ir_module(
        self, mod: IRModule, target: Target, workload_name: str
    ) -> IRModule | None: ...
