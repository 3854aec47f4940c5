"""The microkernels: one file for each type or instruction set, and one for byte pairs.

In: blocks of A and B, packed as `packing` says. Out: accumulators, in registers or stored. Each
file registers its microkernels in `registry`. To add a file, add its name to
`registry.FAMILIES`.
"""
