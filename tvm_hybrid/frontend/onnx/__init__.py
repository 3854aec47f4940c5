"""ONNX models as Relax modules.

In: a model's file or bytes, and what the user says of its inputs. Out: an `ImportedModel`.
`reader` reads and checks it. `importer.py` walks over it once: it finds what is constant, applies
`rewrites`, and emits Relax by the converters of `ops`.
"""
