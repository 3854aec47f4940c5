"""An example server: models behind the HTTP protocol of KServe and Triton, version 2.

FastAPI and uvicorn serve HTTP, prometheus_client the metrics (the extra `serve`). `tensors`
converts requests to arrays and back, `batching` combines requests, `app` has the routes.
"""
