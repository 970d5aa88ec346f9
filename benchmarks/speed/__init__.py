"""Measurements of speed and memory, compared with other implementations in one process on the same tensors.

`workloads` and `providers` are the two tables. `gate` checks each provider against the float64 reference before it is
timed. `measure` contains clocks and counters. `run` combines them and writes JSON. `report` reads only that JSON.
"""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages; read when torch is imported
