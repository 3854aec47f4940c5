"""Convolutions, channels last: directly, by Winograd's transforms, and depthwise.

In: an image and a constant weight. Out: a TIR function for each form; here is what they share.
"""
