"""A model's graph in memory: nodes, values, their sizes and types, and how nodes are made.

In: an `onnx.GraphProto`. Out: what every other part of the import reads and writes.
"""
