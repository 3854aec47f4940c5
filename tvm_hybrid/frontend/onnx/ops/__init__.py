"""Converters from ONNX operators to Relax, by family.

In: a node whose constants are known. Out: a Relax expression. `converters.py` lists all of them.
"""
