"""Products whose numbers of rows, columns or batches are known at run time only.

In: a region with symbolic sizes. Out: its loops around the same tiles that static sizes use.
"""
