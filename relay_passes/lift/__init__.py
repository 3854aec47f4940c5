"""Lifts calls of TIR functions and einsums to the operators that they compute.

In: calls of TIR functions, and einsums. Out: operators that templates, fusion and layouts know, if
a function is proved to compute them; other calls stay.
"""
