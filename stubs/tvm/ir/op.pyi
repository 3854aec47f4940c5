from typing import Any

from .expr import Expr

class Op(Expr):
    name: str
    @staticmethod
    def get(op_name: str) -> Op: ...
    def get_attr(self, attr_name: str) -> Any: ...
    def has_attr(self, attr_name: str) -> bool: ...
