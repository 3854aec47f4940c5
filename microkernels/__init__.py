"""Register tiles: one instruction set each, the innermost loops of every kernel."""

# The modules that register microkernels, loaded when the registry is first asked; adding a family
# is a new file and its name here.
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
)
