"""Which CPU code is made for.

In: a name, a tag, a dictionary, or nothing for this CPU. Out: TVM's target, the features that code
may use, and the check that a CPU has them.
"""
