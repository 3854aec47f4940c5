"""Measuring on other machines through TVM's RPC tracker.

Install TVM with `pip install 'apache-tvm[rpc]'` everywhere. On one machine, run
`python -m tvm.exec.rpc_tracker --port 9190`. On every measuring machine, run `TVM_NUM_THREADS=N
python -m tvm.exec.rpc_server --tracker HOST:9190 --key KEY`; all servers of a key need equal CPUs.
Then run `tvm-hybrid tune model.onnx --tracker HOST:9190 --key KEY` here. Servers do not need this
package; they may come, go and break at any time.
"""
