"""Random ONNX graphs, aimed at what the compiler rewrites; `python -m tests.fuzz` runs them.

`motifs` draws graphs, one family a file. `drawing` evaluates every node while it is drawn, so that
shapes and values are known. `settings` draws how a graph is compiled. `oracle` says what it means
and how far rounding may carry a result; `metamorphic` compares what must be alike. `worker` runs
each case in a process that may crash or hang. `shrinking` cuts what was found to a small graph, and
`case` writes it to a file. Files in `corpus` are what was found once; tests run them.

Nothing that exists draws these graphs. Hypothesis shrinks the choices from which a graph is drawn,
where all later ones change their meaning with an earlier one, and in the process that a kernel may
crash; cutting nodes off the graph needs fewer compilations. NNSmith draws well-formed graphs of
float operators by a solver, through PyTorch: nothing quantised, no attention, nothing in the forms
that exporters write, which are what a compiler's patterns look for.
"""
