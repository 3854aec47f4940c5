"""Convolutions with channels last: direct, by Winograd's algorithm, and depthwise.

In: an image and a constant weight. Out: a TIR function. Each folder holds one of these methods;
the files here are shared by all of them.
"""
