"""8-bit models: from quantise and dequantise to products of integers.

In: QDQ chains, quantised operators, weights of few bits. Out: integer products, scaled once each.
"""
