"""Register tiles: one instruction set each, the innermost loops of every kernel.

The registry is `microkernel`; what CPUs have, `isa`. Rooms: `kernels` (the tiles), `vector` (what
they and every other kernel compute with vectors), `amx` (tile registers), `tensorize` (tiles as
TensorIntrins, for schedules of others).
"""
