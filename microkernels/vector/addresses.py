"""Where elements of buffers lie, as numbers; TVM has pointers, but nothing to compare them by."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from .expressions import Expr

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
