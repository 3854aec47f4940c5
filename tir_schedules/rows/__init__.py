"""Templates that work row by row: normalisations, softmax, elementwise.

In: a tensor, and an epilogue. Out: a TIR function that reads each row once or twice.
"""
