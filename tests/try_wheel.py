"""Run in an environment with the wheel and no checkout: ``python -I try_wheel.py``. Prints its results as JSON."""

import json
import math
import sys
from importlib import metadata, resources

import torch

import ntl_kernels
import ntl_kernels.demo.server
import ntl_kernels.evaluation
import ntl_kernels.ntloss
import ntl_kernels.parallel

numbers = ntl_kernels.NumberTokens.from_mapping({token: float(token) for token in range(10)}, vocab_size=12)
logits = torch.zeros(2, 12, requires_grad=True)
output = ntl_kernels.cross_entropy_ntl(logits, torch.tensor([4, 11]), numbers, return_parts=True)
output.loss.backward()
assert math.isclose(output.cross_entropy.item(), math.log(12), rel_tol=1e-5)
assert math.isclose(output.ntl.item(), 2.5, rel_tol=1e-5)  # the mean distance of the digits from 4
assert logits.grad is not None and logits.grad.abs().sum() > 0
assert ntl_kernels.__version__ == metadata.version("ntl_kernels")
assert (resources.files("ntl_kernels") / "py.typed").is_file()
assert ntl_kernels.demo.server.content_of("page.html").startswith("<!doctype html>")
assert ntl_kernels.__file__.startswith(sys.prefix), ntl_kernels.__file__
print(json.dumps({"file": ntl_kernels.__file__, "version": ntl_kernels.__version__}))
