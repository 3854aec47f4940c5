"""Descriptions of CPUs, as data: one file each, with the source of every number.

In: LLVM's name of a CPU. Out: a `Machine`, which supplies the numbers of every cost estimate.
"""
