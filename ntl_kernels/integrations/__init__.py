"""Integrations with other libraries. Each module needs its library; `ntl_kernels` itself needs none of them."""

from importlib import import_module

from ..extras import needs

with needs(__name__, "transformers", "[transformers]"):
    import_module("transformers")  # every module here needs it; an import by name would hide the package of that name
