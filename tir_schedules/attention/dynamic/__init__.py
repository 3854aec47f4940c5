"""Attention whose numbers of queries, keys or batches are known at run time only.

In: an `AttentionProblem` with symbolic sizes. Out: its kernel.
"""
