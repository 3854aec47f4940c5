"""Reads and rewrites Relax: blocks, calls, views, arithmetic. There is no pass here.

In: a dataflow block. Out: facts about it, and new blocks.
"""
