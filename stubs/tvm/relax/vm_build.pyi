from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import IRModule
from ..ir.transform import Pass
from ..runtime import Executable
from ..target import Target

class VMExecutable(Executable):
    def stats(self) -> str: ...

def build(
    mod: IRModule,
    target: str | Target | None = None,
    params: Mapping[str, Sequence[Any]] | None = None,
    relax_pipeline: str | Pass | None = "default",
    tir_pipeline: str | Pass | None = "default",
    exec_mode: str = "bytecode",
    *,
    system_lib: bool | None = None,
) -> Executable: ...
