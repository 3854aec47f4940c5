"""Targets: the CPU that code is made for.

In: a name, a tag, a dictionary, or None for this CPU. Out: TVM's target, the CPU features that code
may use, and the check that a CPU has them.
"""
