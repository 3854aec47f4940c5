"""Puts finished kernels together: in one parallel region, or with one larger result.

In: kernels as their templates built them. Out: one kernel that contains them.
"""
