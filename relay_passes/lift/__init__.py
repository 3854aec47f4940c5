"""Programs that say how to compute become operators that say what.

In: calls of TIR functions, and einsums. Out: the operators that templates, fusion and layouts know,
where a function is proved to compute them; other calls stay.
"""
