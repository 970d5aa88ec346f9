"""What older versions of torch, Triton, transformers and TRL lack. Each skip of a test names it, and is in
`docs/pages/versions.md`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest


def has(package: str, *release: int) -> bool:
    """Whether a package has this release or a later one."""
    try:
        installed = version(package).split("+")[0].split(".")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in installed[: len(release)] if part.isdigit()) >= release


def needs(package: str, *release: int, to: str) -> pytest.MarkDecorator:
    """Skip a test on older releases, which cannot do ``to``."""
    reason = f"{package} before {'.'.join(map(str, release))} cannot {to}; this is {package} "
    installed = has(package, 0) and version(package)
    return pytest.mark.skipif(not has(package, *release), reason=f"{reason}{installed or '(not installed)'}")
