"""Inspect what the Triton kernels compile to, without a GPU: ``python -m benchmarks.inspect [--json]``.

Every case calls a backend function on tensors without memory, intercepts the launch, and compiles the kernel with the
same arguments and block sizes. The machine code is read with the disassemblers that ship with Triton.

``--model`` estimates from the machine code what a multiprocessor executes for a row, and what limits the speed of the
loss and its gradient on A100, H100, H200 and B200. It is a model, not a measurement.
"""
