"""ONNX models as Relax modules.

In: a model's file or bytes, and what the user says of its inputs. Out: an `ImportedModel`.
`reader` reads and checks it, `propagate.py` finds what is constant and every shape on the way and
applies `rewrites`, and `relax_import.py` emits Relax by the converters of `ops` and `data_sized`.
"""
