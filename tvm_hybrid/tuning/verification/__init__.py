"""Whether a candidate computes the right thing: its inputs, the result, and how far off it may be.

A region and a seed come in. Out go random inputs that make a wrong kernel show (`arguments`), the
region's exact result, and for each element the largest error that a correct kernel may have. The
bounds of single regions are in `bounds`, those of merged attentions and of chains of regions in
files of their own. `known_case` chooses among them.
"""
