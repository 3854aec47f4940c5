"""Checks a candidate: random inputs, the exact result, and the largest allowed error.

In: a region and a seed. Out: random inputs that expose a wrong kernel, the region's exact result,
and for each element the largest error of a correct kernel: `bounds` for single regions,
`chain_bounds` for merged attentions and chains. `known_case` chooses between them.
"""
