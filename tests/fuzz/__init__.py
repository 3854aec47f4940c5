"""Random ONNX graphs, aimed at what the compiler rewrites; `python -m tests.fuzz` runs them.

`motifs` draws graphs, one family a file. `drawing` evaluates every node while it is drawn, so that
shapes and values are known. `settings` draws how a graph is compiled. `oracle` computes the results
and how far rounding may carry them; `metamorphic` compares programs whose results must be equal.
`worker` runs each case in a process that may crash or hang. `shrinking` cuts a failing case to a
small graph, and `case` writes it to a file. `corpus` has cases that once failed; tests run them.

No library draws these graphs. Hypothesis shrinks the choices from which a graph is drawn: each
choice changes the meaning of all later ones, and it draws in the process that a kernel may crash.
Cutting nodes off the graph needs fewer compilations. NNSmith draws well-formed graphs of float
operators by a solver, through PyTorch: nothing quantised, no attention, and none of the forms that
exporters write and that a compiler's patterns look for.
"""
