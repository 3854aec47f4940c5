"""Chooses the layout of every tensor: channels first or last.

In: operators in the layout of the model. Out: channels last where that pays, with the fewest bytes
reordered.
"""
