"""Reads and rewrites Relax: blocks, calls, views, arithmetic. It contains no pass.

In: a dataflow block. Out: facts about it, and new blocks.
"""
