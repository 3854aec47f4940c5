"""A mark in a loop that LLVM must not unroll.

The body of a register tile is unrolled already. For some CPUs LLVM would write it out two to eight
times more, which makes nothing faster and compiling a third slower. It leaves loops alone that call
something, so the mark is a call of assembly without instructions.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

_MARK = "tvm_hybrid_whole_loop"

# A loop with the mark must lie in the scope of `llvm_functions` with this text.
WHOLE_LOOP_LLVM_IR = f"""
define linkonce_odr i32 @{_MARK}() #0 {{
  call void asm sideeffect "", ""() #1
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
attributes #1 = {{ nounwind memory(inaccessiblemem: readwrite) }}
"""


def mark_whole_loop() -> None:
    """Emits the mark, into the body of the innermost loop."""
    I.evaluate(I.call_extern("int32", _MARK))
