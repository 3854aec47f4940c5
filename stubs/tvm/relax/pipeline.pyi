from collections.abc import Callable
from typing import TypeVar

_F = TypeVar("_F", bound=Callable[..., object])

def register_pipeline(name: str) -> Callable[[_F], _F]: ...
