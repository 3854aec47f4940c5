"""Fetching data into the second-level cache before it is needed."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from .expressions import Expr

_PREFETCH = "tvm_hybrid_prefetch"

# TVM passes no pointer type to the intrinsic, hence this function; it is always inlined. A loop
# that calls `prefetch` must lie in the scope of `llvm_functions` with this text.
PREFETCH_LLVM_IR = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr i32 @{_PREFETCH}(ptr %address) #0 {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 2, i32 1)
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def prefetch(element: Expr) -> None:
    """Emits a prefetch of the line that holds an element of a buffer."""
    I.evaluate(I.call_extern("int32", _PREFETCH, I.address_of(element)))
