"""Stand-ins: code built for any instruction set runs exactly on every CPU with AVX2.

LLVM splits 512-bit vectors in two for a CPU without them. Only the instructions that kernels name
have no such substitute: `meanings.py` writes each one in ordinary LLVM IR, `rewriting.py` replaces
them right before machine code is generated, and `building.py` does so for targets with features
that this CPU lacks. All earlier steps are those for the real CPU: tiles, tails, masks, packings,
epilogues. `isas_run.py` counts which test ran which ISA, and how.
"""
