"""An example server: models behind the HTTP protocol of KServe and Triton, version 2.

FastAPI and uvicorn do HTTP, prometheus_client the metrics (the extra `serve`). `tensors` turns
requests into arrays and back, `batching` puts requests together, `app` has the addresses.
"""
