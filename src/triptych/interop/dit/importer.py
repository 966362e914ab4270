"""Files of DiT as runs: published ones, which are bare state dicts, and checkpoints of its training with weights, average and settings."""

from __future__ import annotations

from triptych.interop.dit.weights import FLAGS, described
from triptych.interop.flags import command_line
from triptych.interop.programs import ImportedRun, ImportRequest, about_file
from triptych.interop.transformers import LATENT_FACTOR, files_of, read, recognised, run_of, scale_of

LICENCE = "CC BY-NC 4.0: not for commercial use (DiT)"


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a file. Raises ConfigError for flags that its shapes contradict, CheckpointError for files."""
    with about_file(request.file):
        states, given = read(request, FLAGS, program="DiT")
        config, spec = described(states["model"], given)
        files = files_of(config, spec, states)
    licence = recognised(request, config.network, spec, given, program="DiT", average="ema" in states, licence=LICENCE)
    flags = command_line({"image-size": spec.image_size * LATENT_FACTOR, "num-classes": spec.num_classes})
    return ImportedRun(
        config=run_of(config, spec),
        spec=spec,
        files=files,
        flags=flags,
        sources=(request.file,),
        licence=licence,
        latents=scale_of(spec, given),
    )
