"""Measuring on other machines through TVM's RPC tracker.

On one machine `pip install 'apache-tvm[rpc]'` and `python -m tvm.exec.rpc_tracker --port 9190`; on
every machine that measures the same, then `TVM_NUM_THREADS=<threads> python -m tvm.exec.rpc_server
--tracker <host>:9190 --key <key>`, all servers of one key with the same CPU. Then
`tvm-hybrid tune model.onnx --tracker <host>:9190 --key <key>` here. Servers need nothing of ours;
they may come, go and break at any time.
"""
