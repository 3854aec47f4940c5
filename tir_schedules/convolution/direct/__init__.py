"""Direct convolution on the tiles of a matmul: templates "conv1d", "conv2d", "conv3d".

In: an image, a weight packed in runs. Out: a TIR function; neither x nor its windows are copied.
"""
