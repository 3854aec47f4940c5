"""Reading and rewriting Relax: blocks, calls, views, arithmetic; no pass is here.

In: a dataflow block. Out: questions answered about it, and blocks written anew.
"""
