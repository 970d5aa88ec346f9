"""An emulated GPU: compiled kernels run without one, through Triton's real launcher. See the README beside this file."""
