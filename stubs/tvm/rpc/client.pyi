from collections.abc import Sequence

from tvm_ffi import Device, Function

from ..runtime import Module

class RPCSession:
    def get_function(self, name: str) -> Function: ...
    def cpu(self, dev_id: int = 0) -> Device: ...
    def upload(self, data: bytearray | str, target: str | None = None) -> None: ...
    def remove(self, path: str) -> None: ...
    def load_module(self, path: str) -> Module: ...

def connect(
    url: str,
    port: int,
    key: str = "",
    session_timeout: float = 0,
    session_constructor_args: Sequence[object] | None = None,
    enable_logging: bool = False,
) -> RPCSession: ...
