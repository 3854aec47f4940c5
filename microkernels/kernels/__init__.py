"""The microkernels: one file for each instruction set and type, and one for what a family shares.

In: blocks of A and B, packed as `packing` says. Out: accumulators, in registers or stored. Each
file registers its microkernels in `registry`. To add a file, add its name to
`registry.FAMILIES`.
"""
