"""Template "attention": softmax(q k^T * scale + mask) v; nothing between is stored.

In: q, k, v, and a mask. Out: one TIR function, `tiled` for many queries or `decode` for few.
"""
