"""Rewrites of single ONNX nodes; the importer imports these files, which registers the rewrites.

To add one, write a function under `@rewrites("OpType", domain="...")` of table.py.
"""
