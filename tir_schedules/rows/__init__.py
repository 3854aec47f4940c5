"""Templates that go over rows of memory: normalisations, softmax, elementwise.

In: a tensor, and an epilogue. Out: a TIR function that reads each row once or twice.
"""
