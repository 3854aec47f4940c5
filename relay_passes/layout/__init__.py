"""Where the channels of every tensor lie.

In: operators in the layout of the model. Out: channels last where it pays, and the fewest bytes
reordered.
"""
