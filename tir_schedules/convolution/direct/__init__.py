"""Direct convolution on the tiles of a matmul: templates "conv1d", "conv2d", "conv3d".

In: an image, and a packed weight. Out: a TIR function that reads the image in place, without
im2col.
"""
