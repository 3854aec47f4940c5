from typing import Any

from ....ir import IRModule

def from_exported_program(exported_program: Any, **kwargs: Any) -> IRModule: ...
