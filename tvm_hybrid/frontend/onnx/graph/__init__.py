"""A model's graph in memory: nodes, values, their sizes and types, and how nodes are made.

In: an `onnx.GraphProto`. Out: what every other part of the import reads and writes.

Sizes are numbers, or follow from others, or are found in data: a kernel computes results of the
largest size that is possible, and counts. The count becomes a symbolic size,
`R.match_cast(R.tensor_to_shape(count), R.Shape([n]))`, to which results are cut and in terms of
which TVM types and compiles what comes behind. All of it runs in TVM's C++ runtime.
"""
