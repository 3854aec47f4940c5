"""The microkernels: one file for each instruction set and type, and one for what a family shares.

In: blocks of A and B, packed as `packing` says. Out: accumulators, in registers or stored. Each
file registers its microkernels in `registry`. To add a file, add its name to FAMILIES.
"""

# Loaded when the registry is first asked.
FAMILIES = (
    "avx512_f32",
    "avx2_f32",
    "scalar_f32",
    "avx512_vnni_u8s8",
    "avx512_u8s8",
    "avx2_vnni_u8s8",
    "avx2_u8s8",
    "scalar_u8s8",
    "avx512_dot_bf16",
    "avx512_widened_bf16",
    "avx2_widened_bf16",
    "scalar_bf16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
)
