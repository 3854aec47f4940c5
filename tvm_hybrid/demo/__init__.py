"""The demonstration: `python -m tvm_hybrid.demo` recognises file types with a pretrained model."""
