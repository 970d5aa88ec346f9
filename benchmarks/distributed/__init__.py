"""Training on several devices: vocabulary and layers over one dimension of a mesh, data and weights over the other.

torchrun --nproc-per-node 4 -m benchmarks.distributed
"""
