from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm_ffi import Object
from typing_extensions import Self

from .module import IRModule

class PassInfo(Object):
    name: str
    opt_level: int

class PassContext(Object):
    config: Mapping[str, Any]
    opt_level: int
    required_pass: Sequence[str]
    disabled_pass: Sequence[str]
    instruments: Sequence[Any] | None
    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, ptype: object, value: object, trace: object) -> None: ...
    @staticmethod
    def current() -> PassContext: ...

class Pass(Object):
    @property
    def info(self) -> PassInfo: ...
    def __call__(self, mod: IRModule) -> IRModule: ...

class Sequential(Pass):
    def __init__(
        self, passes: Sequence[Pass] | None = None, opt_level: int = 0, name: str = "sequential"
    ) -> None: ...

def module_pass(
    *, opt_level: int, name: str
) -> Callable[[Callable[[IRModule, PassContext], IRModule]], Pass]: ...
