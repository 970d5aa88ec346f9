"""The loss in other libraries. Each module here needs its library installed; `ntl_kernels` itself needs none."""

from ..extras import needs

with needs(__name__, "transformers", "[transformers]"):
    import transformers  # noqa: F401 - every module here needs it
