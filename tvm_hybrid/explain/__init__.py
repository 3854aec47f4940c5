"""Reports about a compiled program: its decisions, its graph, its memory, its times.

In: a lowered module and the decisions of the passes. Out: `Explanation`, the nodes of the model
that each kernel comes from, the graph of kernels and tensors, the plan of memory, and profiles.
"""
