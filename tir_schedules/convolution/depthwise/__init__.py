"""Template "depthwise_conv2d": every channel has a filter of its own.

In: an image, and a weight with one filter per channel. Out: a TIR function with vectors along the
channels.
"""
