"""Template "attention": softmax(q k^T * scale + mask) v; scores are never stored in memory.

In: q, k, v, and a mask. Out: one TIR function, `tiled` for many queries or `decode` for few.
"""
