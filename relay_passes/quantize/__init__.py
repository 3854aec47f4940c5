"""8-bit models: from quantise and dequantise to products of integers.

In: QDQ chains, quantised operators, narrow weights. Out: integer products, scaled once.
"""
