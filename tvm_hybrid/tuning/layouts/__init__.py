"""Chooses the layouts of a whole model by measuring: channels first or last, for each operator.

In: a model's blocks, and times of their kernels. Out: layouts that are faster than those of the
cheapest cut, measured in the whole model.
"""
