"""The demonstration: `python -m tvm_hybrid.demo` runs pretrained models and measures them.

One recognises the types of files, three find and read text on a page.
"""
