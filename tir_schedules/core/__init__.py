"""What all templates share: regions, configurations, machines, and how work is divided.

In: the description of a region. Out: the classes and functions with which templates build kernels.
"""
