"""Graph passes: which operators form a region, what their data looks like, how they are lowered.

The package is named after TVM's first graph IR. TVM removed Relay in 0.20; its successor is Relax,
and every pass here works on Relax.
"""
