"""Microkernels: the innermost loops of every kernel, each for one instruction set.

`microkernel` is the descriptor of one, `tile` what it emits, `registry` has all of them. `isa` says
which instruction sets there are and which a CPU has.
Rooms: `kernels` (the microkernels), `vector` (arithmetic on vectors, for these and all other
kernels), `amx` (tile registers), `tensorize` (microkernels as TensorIntrins, for TVM's schedules).
"""
