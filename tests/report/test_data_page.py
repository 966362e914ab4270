"""The page about a source of images, where there is more than it shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from PIL import Image

from tests.data.pictures import write_folder
from tests.report.html_pages import read_page
from triptych.data.config import DataConfig
from triptych.data.examination import ClassCount, Examination
from triptych.report.data_page import write_data_page
from triptych.runs.doctor import examine


def looked(path: Path, *, size: int = 16) -> Examination:
    return examine(DataConfig(path=str(path), image_size=size, validation_fraction=0.0), workers=0)


def test_of_many_classes_the_largest_and_the_smallest_are_shown(tmp_path: Path) -> None:
    found = looked(write_folder(tmp_path / "images", ["a.png", "b.png"]))
    for count in (40, 45):
        counts = [ClassCount(f"c{k}", 1000 + 7 * k % count, 1) for k in range(count)]  # 7 and 40, 7 and 45 share no factor
        write_data_page(tmp_path / "page.html", replace(found, classes=counts))
        text = read_page(tmp_path / "page.html").text
        training = [int(number.replace(",", "")) for number in re.findall(r"c\d+ (1,0\d\d) 1\b", text)]
        ordered = list(range(1000 + count - 1, 999, -1))
        assert training == (ordered if count == 40 else ordered[:20] + ordered[-20:])
        assert ("The largest and the smallest of 45." in text) == (count == 45) and ("The largest first." in text) == (count == 40)


def test_of_many_images_and_groups_the_first_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "small", [f"{k:02}.png" for k in range(15)], size=(9, 9))
    write_data_page(tmp_path / "page.html", looked(tmp_path / "small"))
    page = read_page(tmp_path / "page.html")
    assert page.tags.count("img") == 12 and "3 more images; --out" in page.text
    assert "11.png" in page.text and "12.png" not in page.text
    (tmp_path / "copies").mkdir()
    for group in range(8):
        for k in range(5):
            Image.linear_gradient("L").rotate(45 * group).resize((16, 16)).save(tmp_path / "copies" / f"{group}-{k}.png")
    write_data_page(tmp_path / "page.html", looked(tmp_path / "copies"))
    page = read_page(tmp_path / "page.html")
    copies = page.text.split("2 more groups; --out")[0].rsplit("exact duplicates (the same pixels)", 1)[1]
    assert re.findall(r"\d-\d\.png", copies) == [f"{group}-{k}.png" for group in range(6) for k in range(4)]
