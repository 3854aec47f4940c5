"""Convolutions, channels last: directly, by Winograd's transforms, and depthwise.

In: an image and a constant weight. Out: a TIR function. The folders hold one form each; the files
here are what they share.
"""
