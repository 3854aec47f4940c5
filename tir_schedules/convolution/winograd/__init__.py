"""Template "conv2d_winograd": 3x3 convolutions of stride 1.

In: an image, a transformed weight. Out: a TIR function with a quarter of the products.
"""
