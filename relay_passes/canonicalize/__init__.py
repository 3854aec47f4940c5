"""One way to write everything: passes that recognise, fold and simplify.

In: Relax as imported. Out: the same values from operators that later passes know.
"""
