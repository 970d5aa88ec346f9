"""The loss to look at and to touch: ``python -m ntl_kernels.demo``."""
