from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from .attrs import DictAttrs
from .expr import ExprWithOp

class BaseFunc(ExprWithOp):
    @property
    def attrs(self) -> DictAttrs: ...
    def with_attr(self, attr_key_or_dict: str | dict[str, Any], attr_value: Any = None) -> Self: ...
    def with_attrs(self, attr_map: DictAttrs | Mapping[str, Any]) -> Self: ...
    def without_attr(self, attr_key: str) -> Self: ...
