from typing import TypeVar

_Class = TypeVar("_Class", bound=type)

def pass_instrument(pi_cls: _Class) -> _Class: ...
