"""Measures decoders: a given model beside ONNX Runtime, and a seeded Llama beside other engines."""
