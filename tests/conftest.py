"""Settings for every test."""

from hypothesis import settings

# Compiling takes as long as the machine lets it; time must not fail a test.
settings.register_profile("tvm_hybrid", deadline=None)
settings.load_profile("tvm_hybrid")
