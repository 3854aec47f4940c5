"""Whether a candidate computes the right thing: its inputs, the result, and how far off it may be.

A region and a seed come in. Out go random inputs that make a wrong kernel show, the region's exact
result, and for each element the largest error that a correct kernel may have: `bounds` for single
regions, `chain_bounds` for merged attentions and chains. `known_case` chooses among them.
"""
