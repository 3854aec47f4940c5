"""Register tiles: one instruction set each, the innermost loops of every kernel."""

# The modules that register microkernels, loaded when the registry is first asked; adding a family
# is a new file and its name here.
FAMILIES = ("avx512_f32", "avx2_f32", "scalar_f32")
