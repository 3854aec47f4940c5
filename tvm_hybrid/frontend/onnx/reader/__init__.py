"""Reads ONNX files: bytes, external data, checks, old forms of operators.

In: a path or bytes. Out: a checked graph, whose large tensors may stay in their files. Errors name
the node, the input and the remedy.
"""
