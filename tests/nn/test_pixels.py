"""Images as frozen networks take them: the resizes against their definitions, then channels and scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.diffusion.recorded import GOLDEN
from triptych.nn.pixels import RESIZES, Pixels


def images(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def resized(resize, given: Tensor, side: int) -> np.ndarray:
    """In 0..255, (b, side, side, c), computed in float64."""
    pixels = Pixels(side, resize, (0.0,) * given.shape[3], (1.0,) * given.shape[3])
    return pixels.prepared(given, torch.empty(0, dtype=torch.float64)).permute(0, 2, 3, 1).numpy()


def test_tensorflows_resize_as_recorded() -> None:
    with np.load(GOLDEN / "inception.npz") as file:
        given, rows = torch.from_numpy(file["images"]), file["resized"]
    found = resized("tensorflow", given, 299)[0, [0, 150, 298]]  # row, column, channel
    np.testing.assert_allclose(found.transpose(2, 0, 1), rows, atol=1e-4)


@pytest.mark.parametrize("size", [(7, 40), (29, 13)])
def test_tensorflows_resize_by_its_definition(size) -> None:
    """Pixel i lies at i·(old / new) of the image, between two pixels; beyond the last there is the last. Places are float32."""
    side, given = 19, images(1, *size, 3)
    found, pixels = resized("tensorflow", given, side)[0], given[0].double().numpy()
    for row, column in ((0, 0), (1, 3), (10, 18), (18, 7), (18, 18)):
        y, x = row * size[0] / side, column * size[1] / side
        top, left = int(y), int(x)
        bottom, right = min(top + 1, size[0] - 1), min(left + 1, size[1] - 1)
        above = (1 - (x - left)) * pixels[top, left] + (x - left) * pixels[top, right]
        below = (1 - (x - left)) * pixels[bottom, left] + (x - left) * pixels[bottom, right]
        np.testing.assert_allclose(found[row, column], (1 - (y - top)) * above + (y - top) * below, atol=1e-3)


@pytest.mark.parametrize("size", [(20, 33), (90, 61)])
def test_clean_and_bicubic_are_pillows_bicubic_of_floats(size) -> None:
    given = images(1, *size, 3)
    channels = [Image.fromarray(given[0, :, :, c].numpy().astype(np.float32)) for c in range(3)]
    expected = np.stack([np.array(channel.resize((48, 48), Image.Resampling.BICUBIC)) for channel in channels], axis=2)
    np.testing.assert_allclose(resized("bicubic", given, 48)[0], expected, atol=1e-3)
    assert expected.max() > 256 or expected.min() < -1  # which "clean" cuts off
    np.testing.assert_allclose(resized("clean", given, 48)[0], expected.clip(0, 255), atol=1e-3)


@pytest.mark.parametrize("resize", RESIZES)
def test_an_image_of_the_right_size_stays_as_it_is(resize) -> None:
    given = images(2, 16, 16, 3)
    np.testing.assert_array_equal(resized(resize, given, 16), given.numpy())


def test_channels_and_scale() -> None:
    colour = torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 1, 1, 3)
    like = torch.empty(0, dtype=torch.float64)
    rgb = Pixels(1, "clean", (100.0, 50.0, 25.0), (2.0, 4.0, 5.0))
    assert rgb.prepared(colour, like).flatten().tolist() == [50.0, 12.5, 5.0]
    bgr = Pixels(1, "clean", (100.0, 50.0, 25.0), (1.0, 1.0, 1.0), bgr=True)
    assert bgr.prepared(colour, like).flatten().tolist() == [-50.0, 50.0, 175.0]
    grey = Pixels(1, "clean", (0.0,), (255.0,))
    assert grey.prepared(colour, like).item() * 255 == pytest.approx(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert rgb.prepared(colour[..., :1], like).flatten().tolist() == [50.0, 37.5, 35.0]
