"""Addresses, prefetches and stores past the caches."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from .expressions import Expr, lanes_of

# Stores that pass the caches: for what nobody reads soon, more than caches hold.
#
# A usual store first reads the line that it writes to. A streaming store does not: copying takes
# two thirds of the traffic. `end_streams` must run before other threads may read what was stored.


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


_ADDRESS = "tvm_hybrid_address"

# A call of `address_of` must lie in the scope of `llvm_functions` with this text.
ADDRESS_LLVM_IR = f"""
define linkonce_odr i64 @{_ADDRESS}(ptr %element) #0 {{
  %address = ptrtoint ptr %element to i64
  ret i64 %address
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def address_of(element: Expr) -> Expr:
    """The address of an element of a buffer, an int64."""
    return I.call_extern("int64", _ADDRESS, I.address_of(element))


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


_ARRIVE = "tvm_hybrid_arrive"

# What was written before is there for whoever counts later. TVM has no atomic additions for CPUs,
# hence this function; it is always inlined. A loop that calls `count_arrival` must lie in the scope
# of `llvm_functions` with this text.
ARRIVAL_LLVM_IR = f"""
define linkonce_odr i32 @{_ARRIVE}(ptr %counter) #0 {{
  %before = atomicrmw add ptr %counter, i32 1 acq_rel
  ret i32 %before
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def count_arrival(counter: Expr) -> Expr:
    """Adds one to an int32 element of a buffer; how many arrived before. Emit it once."""
    return I.call_extern("int32", _ARRIVE, I.address_of(counter))
