"""The loss in other libraries. Each module here needs its library installed; `ntl_kernels` itself needs none."""

from ..extras import needs

with needs(__name__, "transformers", "ntl_kernels[transformers]"):
    import transformers as _all_of_them_need_it  # noqa: F401
