"""Integrations with other libraries. Each module needs its library; `ntl_kernels` itself needs none of them."""

from ..extras import needs

with needs(__name__, "transformers", "[transformers]"):
    import transformers  # noqa: F401 - every module here needs it
