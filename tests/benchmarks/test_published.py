"""Generated sections of the README."""

from __future__ import annotations

import pytest

from benchmarks.published import digest, markers, with_section

BEGIN, END = markers("speed")


def test_a_section_is_replaced_and_nothing_else() -> None:
    readme = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_section(readme, "speed", "new\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


@pytest.mark.parametrize("text", ["no markers", f"{END} {BEGIN}", BEGIN, "<!-- quality:begin --> <!-- quality:end -->"])
def test_a_readme_without_markers_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="needs the lines <!-- speed:begin -->"):
        with_section(text, "speed", "")


def test_a_digest_names_its_results() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})
