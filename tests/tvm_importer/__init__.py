"""ONNX models that TVM's importer reads and our pipeline compiles."""
