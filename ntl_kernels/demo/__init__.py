"""An interactive page on the loss: ``python -m ntl_kernels.demo``."""
