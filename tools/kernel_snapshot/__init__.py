"""Kernel snapshots: which kernels a corpus of models gets, to compare before and after a change."""
