"""An example server: models behind the HTTP protocol of KServe and Triton, version 2.

FastAPI and uvicorn do HTTP (the extra `serve`). `tensors` turns JSON into arrays and back,
`batching` puts requests together, `app` has the addresses.
"""
