"""bfloat16: which tensors are stored in it, and an entry for callers without the type.

In: f32 or bfloat16 models. Out: bfloat16 operands of products, f32 in between.
"""
