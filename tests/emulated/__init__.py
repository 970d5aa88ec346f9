"""The project's kernels, compiled for a GPU and executed by the emulator in ``tests/emulator``."""
