"""Rewrites of single ONNX nodes; the importer imports the files, which registers them.

To add one, write a function under `@rewrites("OpType", domain="...")` of table.py.
"""
