"""Boxes in generated pictures: what is drawn, how answers are judged, and a run that reports can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.quality import records
from benchmarks.quality.__main__ import main
from benchmarks.quality.boxes import NUMBERS, PATCH, PLACES, SIDE, Boxes, drawn, overlap
from benchmarks.quality.configuration import METRICS


def test_the_ellipse_fills_its_box() -> None:
    """The picture is brightest inside; boxes and their tokens are within the picture."""
    given = drawn(40, 3)
    rows = given.pictures.view(40, SIDE // PATCH, SIDE // PATCH, PATCH, PATCH).permute(0, 1, 3, 2, 4)
    pictures = rows.reshape(40, SIDE, SIDE)
    assert given.labels.min() >= 0 and given.labels.max() < PLACES == len(NUMBERS)
    assert (given.boxes[:, 2:] - given.boxes[:, :2] >= 7).all() and given.boxes.max() <= SIDE
    for picture, (left, top, right, bottom) in zip(pictures, given.boxes.tolist(), strict=True):
        middle = picture[int((top + bottom) / 2), int((left + right) / 2)]
        assert middle > picture.mean() + picture.std()
    assert torch.equal(drawn(40, 3).pictures, given.pictures)


@pytest.mark.parametrize(
    ("box", "expected"),
    [((0, 0, 4, 4), 1.0), ((2, 0, 6, 4), 1 / 3), ((4, 4, 6, 6), 0.0), ((3, 3, 1, 1), 0.0), ((1, 1, 3, 3), 0.25)],
)
def test_overlap_is_intersection_over_union(box: tuple[int, ...], expected: float) -> None:
    others = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    assert overlap(torch.tensor([box], dtype=torch.float32), others).item() == pytest.approx(expected)


def test_a_run_can_be_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.quality.boxes.TESTED", 8)
    monkeypatch.setattr("benchmarks.quality.boxes.VALIDATED", 8)
    options = ["--pictures", "40", "--steps", "4", "--out", str(tmp_path)]
    assert main(["boxes", "loss=soft_labels", "loss.weight=2", *options]) == 0
    (found,) = records.read([tmp_path])
    assert (found["dataset"], found["loss"]) == ("boxes_40", "CE + 2 soft labels (label_sigma=0.3)")
    assert set(found["metrics"]["test"]) == {"iou", "iou_50", "iou_75", "mae"} and len(found["curve"]) == 4
    assert isinstance(drawn(2, 1), Boxes)
    assert main(["boxes", *options]) == main(["boxes", *options, "--steps", "8"]) == 0
    found = [json.loads(path.read_text()) for path in tmp_path.glob(f"*-ce-*/{METRICS}")]
    assert {run["config"]["dataset"]["steps"] for run in found} == {4, 8}
