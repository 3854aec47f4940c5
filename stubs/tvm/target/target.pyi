from collections.abc import Mapping
from typing import Any

from tvm_ffi import Object
from typing_extensions import Self

class TargetKind(Object):
    name: str

class Target(Object):
    kind: TargetKind
    tag: str
    attrs: Mapping[str, Any]
    host: Target | None
    def __init__(
        self, target: Target | Mapping[str, Any] | str, host: Target | None = None
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, ptype: object, value: object, trace: object) -> None: ...
    def with_host(self, host: Target | None = None) -> Target: ...
    @staticmethod
    def list_kinds() -> list[str]: ...
    @staticmethod
    def current(allow_none: bool = True) -> Target | None: ...
