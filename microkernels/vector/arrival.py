"""Counting threads that have finished their part of something, without a lock."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from .expressions import Expr

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
