"""AMX bf16: TDPBF16PS. It sums even and odd products separately and adds the two sums last."""

from .amx_family import register_amx_blocks
from .bf16_family import DOT_LLVM_IR, dot_by_dpbf16

register_amx_blocks(
    "bf16", "bfloat16", "bfloat16", "float32", "tdpbf16ps", dot_by_dpbf16, DOT_LLVM_IR
)
