from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ....ir import Expr, Type, Var
from ...expr import Select as Select
from ...op import address_of as address_of
from ...op import bitwise_and as bitwise_and
from ...op import call_extern as call_extern
from ...op import call_llvm_intrin as call_llvm_intrin
from ...op import call_llvm_pure_intrin as call_llvm_pure_intrin
from ...op import call_pure_extern as call_pure_extern
from ...op import floordiv as floordiv
from ...op import floormod as floormod
from ...op import masked_load as masked_load
from ...op import masked_store as masked_store
from ...op import reinterpret as reinterpret
from ...op import sqrt as sqrt
from . import frame

class axis:
    @staticmethod
    def remap(kinds: str, bindings: Sequence[Expr], dtype: str = "int32") -> list[Var]: ...

def Assert(
    condition: Expr | bool, message: str, error_kind: str = "RuntimeError"
) -> frame.AssertFrame: ...
def If(condition: Expr | bool) -> frame.IfFrame: ...
def Then() -> frame.ThenFrame: ...
def Else() -> frame.ElseFrame: ...
def prim_func(is_private: bool = False, s_tir: bool = False) -> frame.PrimFuncFrame: ...
def func_name(name: str) -> None: ...
def func_attr(attrs: Mapping[str, Any]) -> None: ...
def arg(name: str, obj: Var) -> Var: ...
def handle(dtype: str | None = None, storage_scope: str = "global") -> Var: ...
def buffer(
    shape: Sequence[Expr | int],
    dtype: str = "float32",
    data: Expr | None = None,
    strides: Sequence[Expr | int] | None = None,
    elem_offset: Expr | int | None = None,
    *,
    scope: str = "global",
    align: int = 0,
    offset_factor: int = 0,
) -> Var: ...
def decl_buffer(
    shape: Sequence[Expr | int],
    dtype: str = "float32",
    data: Expr | None = None,
    strides: Sequence[Expr | int] | None = None,
    elem_offset: Expr | int | None = None,
    *,
    scope: str = "global",
    align: int = 0,
    offset_factor: int = 0,
) -> Var: ...
def match_buffer(
    param: Expr,
    shape: Sequence[Expr | int],
    dtype: str = "float32",
    data: Expr | None = None,
    strides: Sequence[Expr | int] | None = None,
    elem_offset: Expr | int | None = None,
    scope: str = "global",
    align: int = -1,
    offset_factor: int = 0,
) -> Var: ...
def sblock_alloc_buffer(
    shape: Sequence[Expr | int],
    dtype: str = "float32",
    *,
    scope: str = "global",
    align: int = -1,
    layout: None = ...,
) -> Var: ...

# A buffer is a variable; kernels pass their buffers as expressions.
def buffer_store(buffer: Expr, value: Expr, indices: Sequence[Expr | int]) -> None: ...
def sblock(name: str = "", no_realize: bool = False) -> frame.SBlockFrame: ...
def reads(*buffer_slices: Expr) -> None: ...
def writes(*buffer_slices: Expr) -> None: ...
def attr(
    node_or_dict: Any, attr_key: str | None = None, value: Expr | str | None = None
) -> frame.AttrFrame: ...
def bind(
    value: Expr | int, type_annotation: Type | None = None, *, var: Var | None = None
) -> Var: ...
def evaluate(value: Expr) -> None: ...
def grid(*extents: Expr | int) -> AbstractContextManager[list[Var]]: ...
def While(condition: Expr) -> frame.WhileFrame: ...
def serial(
    start: Expr | int,
    stop: Expr | int | None = None,
    *,
    annotations: Mapping[str, Any] | None = None,
    unroll: bool | int | None = None,
) -> frame.ForFrame: ...
def parallel(
    start: Expr | int,
    stop: Expr | int | None = None,
    *,
    annotations: Mapping[str, Any] | None = None,
) -> frame.ForFrame: ...
def vectorized(
    start: Expr | int,
    stop: Expr | int | None = None,
    *,
    annotations: Mapping[str, Any] | None = None,
) -> frame.ForFrame: ...
