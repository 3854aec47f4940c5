from typing import TypeVar

T = TypeVar("T")

def derived_object(cls: type[T]) -> type[T]: ...
