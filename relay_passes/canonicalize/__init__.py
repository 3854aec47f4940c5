"""Writes every formula in one standard form: passes that recognise, fold and simplify.

In: Relax as imported. Out: the same values, computed by operators that later passes recognise.
"""
