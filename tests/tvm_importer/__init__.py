"""ONNX models that TVM's own importer reads, compiled by our pipeline."""
