"""The cost of a kernel before it is built: loop nests, cycles, bytes.

In: a region, a configuration, a machine. Out: estimates, and the reasons that `explain` shows.
"""
