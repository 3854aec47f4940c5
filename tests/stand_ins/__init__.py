"""Stand-ins: code that is built for any instruction set runs on every CPU with AVX2, exactly.

LLVM cuts 512-bit vectors in two where a CPU has none. Only instructions that are named in kernels
have no such substitute: `meanings.py` says what each computes in ordinary LLVM IR, `rewriting.py`
puts that in their place right before machine code is made, and `building.py` has that done for
targets with features that this CPU lacks. Everything before is the code for the real CPU: tiles,
tails, masks, packings, epilogues. `isas_run.py` counts which test ran which ISA, and how.
"""
