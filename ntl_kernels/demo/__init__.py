"""The loss as a page to play with: ``python -m ntl_kernels.demo``."""
