"""Template "conv2d_winograd": convolutions of stride 1, of 3x3 taps or of a line of taps.

In: an image or a signal, a transformed weight. Out: a TIR function with fewer products.
"""
