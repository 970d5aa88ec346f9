"""An emulated GPU: compiled kernels run without a device, through Triton's real launcher. See the README."""
