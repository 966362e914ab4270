"""Two pictures of how people and faces are prepared: what is cut out of a person, and a driver's face fitted to another.

    python benchmarks/people_picture.py --out docs/methods/images

Person and faces are made of key points by hand. cut-out.png: OpenPose's lines of a person in a frame, with the box of data.cut_out person
and the squares that discriminators of faces and hands see; beside it what is in these. fitted-face.png: the lines of a driver's face, of a
reference's, and of the driver's with the proportions of the reference.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from triptych.data.cut_out import PLAIN, Extent, person_box
from triptych.data.face_fitting import fitted
from triptych.data.keypoints import PeopleStyle, draw_face, draw_person
from triptych.gans.crops import face_crops, hand_crops

HEIGHT, WIDTH, ASPECT = 512, 448, 0.5
BOXES = ((255, 255, 255), (255, 210, 0), (0, 220, 255))
_BODY = {
    0: (0, -168), 15: (-9, -176), 16: (9, -176), 17: (-20, -170), 18: (20, -170), 1: (0, -120), 2: (-40, -116), 3: (-74, -66),
    4: (-96, -10), 5: (40, -116), 6: (82, -92), 7: (112, -146), 8: (0, -4), 9: (-24, 0), 10: (-34, 84), 11: (-40, 164), 12: (24, 0),
    13: (46, 78), 14: (34, 162), 22: (-60, 178), 23: (-54, 182), 24: (-34, 176), 19: (54, 178), 20: (60, 174), 21: (30, 176),
}  # fmt: skip
"""Of a dancer whose hips are at (0, 0): the points of OpenPose's body."""


def face(*, width: float, height: float, mouth: float, brows: float, eyes: float) -> np.ndarray:
    """The 68 points of a face around (0, 0), of such a width and height; `mouth`, `eyes`: half their widths."""
    points = np.zeros((68, 2))
    angles = np.linspace(0, np.pi, 17)
    points[:17] = np.stack((-np.cos(angles) * width / 2, -0.1 * height + np.sin(angles) * 0.6 * height), 1)
    for side, first in ((-1, 17), (1, 22)):
        along = np.linspace(0.82, 0.2, 5)[:: -side if side > 0 else 1]
        points[first : first + 5] = np.stack((side * along * width / 2, -brows - 0.04 * height * np.sin(np.linspace(0, np.pi, 5))), 1)
        angles = np.pi - np.arange(6) * np.pi / 3
        around = np.stack((np.cos(angles) * eyes, -np.sin(angles) * 0.5 * eyes), 1)
        points[36 if side < 0 else 42 :][:6] = around + np.array((side * 0.24 * width, -0.13 * height))
    points[27:31] = np.stack((np.zeros(4), np.linspace(-0.12, 0.1, 4) * height), 1)
    points[31:36] = np.stack((np.linspace(-0.1, 0.1, 5) * width, (0.13 + 0.02 * np.sin(np.linspace(0, np.pi, 5))) * height), 1)
    for first, count, share, start in ((48, 12, 1.0, np.pi), (60, 8, 0.75, np.pi)):
        angles = start - np.arange(count) * 2 * np.pi / count
        points[first : first + count] = np.stack((np.cos(angles) * mouth * share, 0.28 * height - np.sin(angles) * 0.4 * mouth * share), 1)
    return points


def hand(wrist: tuple[float, float], *, up: float) -> np.ndarray:
    """The 21 points of an open hand: five fingers from the wrist, about the direction `up`."""
    points = [wrist]
    for finger in range(5):
        angle = up + (finger - 2) * 0.32
        points += [(wrist[0] + reach * np.cos(angle), wrist[1] + reach * np.sin(angle)) for reach in (10, 16, 21, 25)]
    return np.array(points)


def dancer() -> dict[str, np.ndarray]:
    """The key points of a person in the frame, all of them seen."""
    middle = np.array([WIDTH * 0.47, HEIGHT * 0.52])
    body = np.zeros((25, 3))
    for number, place in _BODY.items():
        body[number] = (*(middle + place), 1.0)
    small = face(width=36, height=48, mouth=9, brows=13, eyes=4.5)
    parts = {
        "face": np.concatenate((small, small[[37, 43]])) + np.array((0, -166)),
        "left": hand(_BODY[7], up=-1.2),
        "right": hand(_BODY[4], up=1.9),
    }
    seen = {name: np.concatenate((points + middle, np.ones((len(points), 1))), 1) for name, points in parts.items()}
    return {"body": body, **seen}


def cut_out_picture() -> Image.Image:
    """The frame with its boxes, and the parts themselves."""
    person = dancer()
    drawn = draw_person(person, height=HEIGHT, width=WIDTH)
    limbs = torch.from_numpy(draw_person(person, height=HEIGHT, width=WIDTH, style=PeopleStyle(limbs=True))).movedim(-1, 0)[None] * 2.0 - 1
    rows, columns = np.nonzero(drawn.any(-1))
    box = person_box(Extent(columns.min(), rows.min(), columns.max() + 1, rows.max() + 1), (WIDTH, HEIGHT), PLAIN["person"], aspect=ASPECT)
    picture, squares = Image.fromarray(drawn), []
    canvas = ImageDraw.Draw(picture)
    canvas.rectangle((box.left, box.top, box.right - 1, box.bottom - 1), outline=BOXES[0], width=2)
    for crops, colour in ((face_crops(limbs, drawn=True), BOXES[1]), (hand_crops(limbs), BOXES[2])):
        for left, top, side in zip(*(values[0].tolist() for values in (crops.left, crops.top, crops.side)), strict=True):
            squares.append((Image.fromarray(drawn[top : top + side, left : left + side]), colour))
            canvas.rectangle((left, top, left + side - 1, top + side - 1), outline=colour, width=2)
    sheet = Image.new("RGB", (WIDTH + 8 + HEIGHT // 2 + 8 + 168, HEIGHT), "white")
    sheet.paste(picture, (0, 0))
    person_cut = Image.fromarray(drawn[box.top : box.bottom, box.left : box.right]).resize((HEIGHT // 2, HEIGHT))
    sheet.paste(person_cut, (WIDTH + 8, 0))
    for place, (square, colour) in enumerate(squares):
        framed = Image.new("RGB", (168, 168), colour)
        framed.paste(square.resize((164, 164)), (2, 2))
        sheet.paste(framed, (WIDTH + 16 + HEIGHT // 2, place * 172))
    return sheet


def fitted_picture() -> Image.Image:
    """The driver, the reference, and the driver with the reference's proportions."""
    side, middle = 256, np.array([128.0, 140.0])
    driver = face(width=130, height=146, mouth=34, brows=41, eyes=15) + middle
    reference = face(width=116, height=164, mouth=20, brows=48, eyes=20) + middle
    (made,) = fitted([driver], reference)
    sheet = Image.new("L", (3 * side + 16, side), 255)
    for place, points in enumerate((driver, reference, made)):
        sheet.paste(Image.fromarray(draw_face(points, height=side, width=side)), (place * (side + 8), 0))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cut_out_picture().save(options.out / "cut-out.png", optimize=True)
    fitted_picture().save(options.out / "fitted-face.png", optimize=True)


if __name__ == "__main__":
    main()
