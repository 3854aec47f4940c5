"""Finished kernels put together: in one parallel region, or into one larger tensor.

In: kernels as their templates built them. Out: one kernel that contains them.
"""
