"""What guided-diffusion's training scripts do where a flag is left out."""

from __future__ import annotations

import pytest

from triptych.interop.guided_diffusion.commands import ENDLESS_IMAGES, training
from triptych.interop.guided_diffusion.flags import read


@pytest.mark.parametrize(("words", "images", "told"), [("", ENDLESS_IMAGES, True), ("--lr_anneal_steps 10", 20, False)])
def test_a_training_without_an_end_is_said(words: str, images: int, told: bool) -> None:
    notes: list[str] = []
    config = training(read("image_train", f"--data_dir x {words}".split()), processes=2, note=notes.append)
    assert (config.train.total_images, config.optim.schedule) == (images, "constant" if told else "linear")
    assert [note.startswith("--lr_anneal_steps 0 never ends: stop it with Ctrl-C") for note in notes] == [True] * told


def test_the_defaults_of_a_classifier_are_the_originals() -> None:
    config = training(read("classifier_train", ["--data_dir", "x"]), processes=1, note=print)
    train, optim = config.train, config.optim
    assert (train.total_images, train.batch_size, train.checkpoint_every) == (150_000 * 4, 4, 10_000 * 4)
    assert (optim.learning_rate, optim.weight_decay, optim.schedule) == (3e-4, 0.0, "constant")
    assert (config.log.every, config.data.crop, config.data.validation_fraction) == (40, "random", 0.0)
    assert (train.precision, train.loss_scale, train.ema_rates) == ("float32", 2.0**16, ())
