"""How far results of two runtimes are apart, and from which node of a model on.

In: a model, feeds, and two runtimes. Out: distances, bounds derived from the number of operations,
and the first node whose result differs.
"""
