"""PSNR, SSIM and MS-SSIM: by hand, by SciPy's filter, and as pytorch-msssim has them."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from tests.evaluation.recorded_pairs import pair, recorded
from triptych.core.errors import DataError
from triptych.evaluation.pairs import SMALLEST_SIDE, ms_ssim, psnr, ssim

C1, C2 = 0.01**2, 0.03**2


def similarity_by_scipy(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The means of SSIM and of its contrast and structure, of one channel (h, w) in [0, 1]."""

    def windowed(values: np.ndarray) -> np.ndarray:
        return gaussian_filter(values, 1.5, radius=5)[5:-5, 5:-5]

    mx, my = windowed(x), windowed(y)
    sx, sy, sxy = windowed(x * x) - mx * mx, windowed(y * y) - my * my, windowed(x * y) - mx * my
    structure = (2 * sxy + C2) / (sx + sy + C2)
    return float(((2 * mx * my + C1) / (mx * mx + my * my + C1) * structure).mean()), float(structure.mean())


@pytest.mark.parametrize("name", ["rgb", "grey", "odd"])
def test_as_the_original_has_them(name: str) -> None:
    values = recorded()
    assert ssim(*pair(name)) == pytest.approx(values[f"ssim/{name}"], abs=1e-6)  # its window is of float32
    if name != "odd":
        assert ms_ssim(*pair(name)) == pytest.approx(values[f"ms_ssim/{name}"], abs=1e-6)


def test_ssim_is_the_mean_of_windows_by_scipy() -> None:
    images, truth = pair("odd")
    x, y = images[0] / 255.0, truth[0] / 255.0
    by_channel = [similarity_by_scipy(x[..., c], y[..., c])[0] for c in range(3)]
    assert ssim(images, truth) == pytest.approx([np.mean(by_channel)], rel=1e-12)


def test_ms_ssim_by_scipy_with_an_odd_size() -> None:
    """Contrast and structure at four sizes, all of SSIM at the fifth; odd rows and columns are left out on the way."""
    images, truth = pair("uneven")  # 176x190, 88x95, 44x47, 22x23, 11x11
    x, y = images[0, ..., 0] / 255.0, truth[0, ..., 0] / 255.0
    expected = 1.0
    for scale, weight in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        whole, structure = similarity_by_scipy(x, y)
        expected *= (whole if scale == 4 else structure) ** weight
        x, y = (v[: len(v) // 2 * 2, : v.shape[1] // 2 * 2].reshape(len(v) // 2, 2, -1, 2).mean((1, 3)) for v in (x, y))
    assert ms_ssim(images, truth) == pytest.approx([expected], rel=1e-12)
    assert ms_ssim(images.swapaxes(1, 2), truth.swapaxes(1, 2)) == pytest.approx([expected], rel=1e-12), "an odd height"


def test_psnr_by_hand() -> None:
    truth = np.full((3, 2, 5, 1), 100, np.uint8)
    images = truth.copy()
    images[0] += 3
    images[1, 0, 0] -= 50  # one pixel of ten
    values = psnr(images, truth)
    assert values[:2] == pytest.approx([20 * math.log10(255 / 3), 10 * math.log10(255**2 / 250)], rel=1e-12)
    assert values[2] == math.inf
    assert values.dtype == np.float64


def test_equal_images_are_1_and_opposite_structure_is_below_0() -> None:
    images, _ = pair("rgb")
    assert ssim(images, images) == pytest.approx([1, 1], abs=1e-12)
    assert ms_ssim(images, images) == pytest.approx([1, 1], abs=1e-12)
    noise = np.random.default_rng(0).integers(0, 256, (1, SMALLEST_SIDE, SMALLEST_SIDE, 1), np.uint8)
    assert ssim(noise, 255 - noise)[0] < -0.9
    assert ms_ssim(noise, 255 - noise)[0] == 0  # a root of a number below 0 is none


def test_each_image_for_itself() -> None:
    images, truth = pair("rgb")
    for measure in (psnr, ssim, ms_ssim):
        alone = [measure(images[k : k + 1], truth[k : k + 1])[0] for k in range(2)]
        assert measure(images, truth) == pytest.approx(alone, rel=1e-12)


def test_many_images_take_the_memory_of_one() -> None:
    images, truth = (np.repeat(x[:1, :32, :32], 40, axis=0) for x in pair("rgb"))

    def peak(count: int) -> int:
        tracemalloc.start()
        ssim(images[:count], truth[:count])
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return taken

    peak(1)  # what is made once
    assert peak(40) < 2 * peak(1)


def test_what_cannot_be_compared_is_said() -> None:
    def blank(*shape: int, dtype: type = np.uint8) -> np.ndarray:
        return np.zeros(shape, dtype)

    with pytest.raises(DataError, match="MS-SSIM needs images of at least 176 pixels a side .*, got 300x175"):
        ms_ssim(blank(1, 175, 300, 3), blank(1, 175, 300, 3))
    with pytest.raises(DataError, match="^SSIM needs images of at least 11 pixels a side .*, got 10x64"):
        ssim(blank(1, 64, 10, 1), blank(1, 64, 10, 1))
    assert ssim(blank(1, 11, 11, 1), blank(1, 11, 11, 1)).shape == (1,)
    assert ms_ssim(blank(1, 176, 176, 1), blank(1, 176, 176, 1)) == 1
    with pytest.raises(DataError, match="got 2 of 8x9 with 3 channels and 2 of 9x8 with 3 channels"):
        psnr(blank(2, 9, 8, 3), blank(2, 8, 9, 3))
    with pytest.raises(DataError, match=r"got float32 of shape \[1, 8, 8, 3\], expected 8-bit images"):
        psnr(blank(1, 8, 8, 3, dtype=np.float32), blank(1, 8, 8, 3))
    for shape in ((1, 8, 8, 4), (8, 8, 3), (0, 8, 8, 3)):
        with pytest.raises(DataError, match="expected 8-bit images"):
            psnr(blank(*shape), blank(*shape))
