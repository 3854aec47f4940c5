from ..ir import IRModule
from ..ir.transform import Pass
from ..runtime import Module
from ..target import Target
from .function import PrimFunc

def build(
    mod: PrimFunc | IRModule,
    target: str | Target | None = None,
    pipeline: str | Pass | None = "default",
) -> Module: ...
