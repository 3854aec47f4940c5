"""Stores that pass the caches: for what nobody reads soon, more than caches hold.

A usual store first reads the line that it writes to. A streaming store does not: copying takes two
thirds of the traffic. `end_streams` must run before other threads may read what was stored.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from .expressions import Expr, lanes_of

_STREAM, _END = "tvm_hybrid_stream_f32x", "tvm_hybrid_end_streams"


def streaming_llvm_ir(lanes: int) -> str:
    """The functions that `stream` and `end_streams` call, for vectors of so many f32.

    Both must lie in the scope of `llvm_functions` with this text.
    """
    vector = f"<{lanes} x float>"
    return f"""
declare void @llvm.x86.sse.sfence()
define linkonce_odr i32 @{_STREAM}{lanes}(ptr %address, {vector} %value) #0 {{
  store {vector} %value, ptr %address, align {4 * lanes}, !nontemporal !0
  ret i32 0
}}
define linkonce_odr i32 @{_END}() #0 {{
  call void @llvm.x86.sse.sfence()
  ret i32 0
}}
!0 = !{{i32 1}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def stream(element: Expr, value: Expr) -> None:
    """Emits a streaming store of a vector to where an element of a buffer begins.

    Its address must be a multiple of the vector's size.
    """
    function = f"{_STREAM}{lanes_of(value)}"
    I.evaluate(I.call_extern("int32", function, I.address_of(element), value))


def end_streams() -> None:
    """Emits a fence behind all streaming stores."""
    I.evaluate(I.call_extern("int32", _END))
