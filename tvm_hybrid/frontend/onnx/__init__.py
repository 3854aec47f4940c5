"""ONNX models as Relax modules.

In: a model's file or bytes, and the user's shapes and values of inputs. Out: an `ImportedModel`.
`reader` reads and checks the model. `importer.py` walks over its graph once: it folds constants,
applies `rewrites`, and emits Relax by the converters of `ops`.
"""
