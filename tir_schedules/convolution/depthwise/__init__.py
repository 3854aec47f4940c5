"""Template "depthwise_conv2d": every channel has a window of its own.

In: an image, a weight of one filter a channel. Out: a TIR function, vectors along the channels.
"""
