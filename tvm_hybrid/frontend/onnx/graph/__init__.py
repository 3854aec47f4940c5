"""A model's graph in memory: nodes, values, their sizes and types, and how nodes are made.

In: an `onnx.GraphProto`. Out: the `Graph` that the other parts of the import read and write.

A size is a number, follows from other sizes, or depends on data. In the last case a kernel writes
results of the largest possible size, and a count. The count becomes a symbolic size,
`R.match_cast(R.tensor_to_shape(count), R.Shape([n]))`; results are cut to it, and TVM types and
compiles later operators in terms of it. All of it runs in TVM's C++ runtime.
"""
