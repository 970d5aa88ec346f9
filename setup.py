"""Build and install `ntl_kernels`. Settings of the tools are in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)[^)]*\)")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
"""Says who wrote it and, once it has a public home, where (``repository-code: URL``): the one place for both."""
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "ntl_kernels" / "__init__.py").read_text(encoding="utf-8"))[1]


class FreshBuild(build):
    """A build without what an earlier one left, such as modules that are gone: all of it would get into the wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def standalone(text: str) -> str:
    """Markdown that is read away from the repository: links into it become plain words, its images go."""
    return RELATIVE_LINK.sub(lambda found: "" if found[1] else found[2], text)


def in_citation(pattern: str) -> str | None:
    """What CITATION.cff says, if it does."""
    found = re.search(pattern, CITATION, re.MULTILINE)
    return found[1] if found else None


def urls() -> dict[str, str]:
    """The paper, and the repository with its issues and changes if it is known."""
    found = {"Paper": in_citation(r"^  url: (\S+)$")}
    if repository := in_citation(r"^repository-code: (\S+)$"):
        found["Repository"], found["Issues"] = repository, f"{repository}/issues"
        found["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
    return found


TRANSFORMERS = ["transformers>=4.57", "accelerate>=1.10"]
TRL = [*TRANSFORMERS, "trl>=0.24; python_version >= '3.11'", "datasets>=4.1"]
SPEED = ["pytest-benchmark>=5.2", "matplotlib>=3.9", "psutil>=5.9", "tqdm>=4.66", "ntloss==0.3.2"]
QUALITY = ["hydra-core>=1.3", "scikit-learn>=1.5", "scipy>=1.14"]
BENCH = [*TRANSFORMERS, *SPEED, *QUALITY]
FINETUNE = [*BENCH, "peft>=0.17", "gguf>=0.17"]
TEXT = ["sacrebleu>=2.5", "rouge-score>=0.1.2"]
DEMO = ["tokenizers>=0.22"]
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7", "mkdocstrings[python]>=1.0", "latex2mathml>=3.78"]
DOCS += ["pymdown-extensions<12.1; python_version < '3.11'"]  # the last mkdocstrings for Python 3.10 needs an older one
TOOLS = ["pytest>=9", "pytest-xdist>=3.8", "hypothesis>=6.150", "setuptools>=77", "import-linter>=2.15,<3"]
PAGES = ["selenium>=4.51", "axe-selenium-python>=2.1.6", "nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29"]
FRAMEWORKS = ["lightning>=2.6", "deepspeed>=0.19; platform_system != 'Windows'"]  # no compiler is needed for either
TEST = [*TRL, *FRAMEWORKS, *FINETUNE, *TEXT, *DEMO, *DOCS, *TOOLS, *PAGES, "tensorboard>=2.18"]

setup(
    name="ntl_kernels",
    version=VERSION,
    description="Fused cross-entropy + Number Token Loss kernels for language models",
    long_description=standalone(README),
    long_description_content_type="text/markdown",
    author=in_citation(r"^authors:\n  - name: (.+)$"),
    project_urls=urls(),
    keywords=["number token loss", "cross-entropy", "language models", "numbers", "regression", "Triton", "PyTorch"],
    license_expression="MIT",
    cmdclass={"build": FreshBuild},
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["ntl_kernels", "ntl_kernels.*"]),
    package_data={"": ["py.typed", "*.css", "*.html", "*.ico", "*.js", "*.json", "*.png", "*.svg"]},
    install_requires=["torch>=2.8", "triton>=3.4; platform_system == 'Linux'", "numpy>=1.26"],
    extras_require={
        "transformers": TRANSFORMERS,
        "trl": TRL,
        "test": TEST,
        "bench": BENCH,
        "finetune": FINETUNE,
        "text": TEXT,
        "demo": DEMO,
        "docs": DOCS,
        "dev": [*TEST, "ruff==0.17.5", "mypy==2.4.1"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
