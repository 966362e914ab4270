"""Files of SiT as runs: published ones, which are bare state dicts, and checkpoints of its training with weights, average and settings."""

from __future__ import annotations

from triptych.interop.flags import command_line
from triptych.interop.programs import ImportedRun, ImportRequest, about_file
from triptych.interop.sit.flags import BESIDE, FLAGS, PATHS
from triptych.interop.sit.weights import described
from triptych.interop.transformers import LATENT_FACTOR, files_of, read, recognised, run_of, scale_of

LICENCE = "MIT (SiT)"


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a file. Raises ConfigError for flags that its shapes contradict, CheckpointError for files."""
    with about_file(request.file):
        states, given = read(request, FLAGS, program="SiT", beside=BESIDE)
        config, spec = described(states["model"], given)
        files = files_of(config, spec, states)
    licence = recognised(request, config.network, spec, given, program="SiT", average="ema" in states, licence=LICENCE)
    flags = {
        "image-size": spec.image_size * LATENT_FACTOR,
        "num-classes": spec.num_classes,
        "path-type": next(name for name, ours in PATHS.items() if ours == config.path),
        "prediction": config.prediction,
    }
    return ImportedRun(
        config=run_of(config, spec),
        spec=spec,
        files=files,
        flags=command_line(flags),
        sources=(request.file,),
        licence=licence,
        latents=scale_of(spec, given),
    )
