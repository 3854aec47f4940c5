from collections.abc import Callable
from typing import Any

from tvm_ffi import Device, Function

from .executable import Executable
from .module import Module

class VirtualMachine:
    module: Module
    def __init__(self, rt_mod: Module | Executable, device: Device | list[Device]) -> None: ...
    def __getitem__(self, key: str) -> Function: ...
    def set_instrument(self, instrument: Callable[..., Any]) -> None: ...
