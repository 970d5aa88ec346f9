"""Integrations with other libraries. Each module needs its library; `ntl_kernels` itself needs none of them."""

from ..extras import needs

with needs(__name__, "transformers", "[transformers]"):
    __import__("transformers")  # every module here needs it; `import transformers` would hide our package of that name
