"""Training on several devices: vocabulary and layers split over one mesh dimension, data and weights over the other.

torchrun --nproc-per-node 4 -m benchmarks.distributed
"""
