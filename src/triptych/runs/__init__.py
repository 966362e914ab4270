"""The Python API: `train(config, run_dir)`, and `open_run(run_dir)` for what a trained run can do.

from triptych.recipes.diffusion import adm_digits
from triptych.runs import open_run, train

train(adm_digits(), "runs/digits")
samples = open_run("runs/digits").sample(64, seed=0, labels=[3, 7])
samples.images  # uint8, (64, 16, 16, 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.engine.distributed import close_world
    from triptych.runs.directions import Directions
    from triptych.runs.encoding import Coder
    from triptych.runs.evaluation import Evaluation
    from triptych.runs.interchange import Exported, export_run, import_run
    from triptych.runs.latents import Latents, between
    from triptych.runs.run import Run, open_run
    from triptych.runs.sampling import Samples
    from triptych.runs.scoring import Scores, score
    from triptych.runs.training import train
    from triptych.runs.translating import Translations

__all__ = [
    "Coder",
    "Directions",
    "Evaluation",
    "Exported",
    "Latents",
    "Run",
    "Samples",
    "Scores",
    "Translations",
    "between",
    "close_world",
    "export_run",
    "import_run",
    "open_run",
    "score",
    "train",
]

_MODULES = {
    "triptych.engine.distributed": ("close_world",),
    "triptych.runs.directions": ("Directions",),
    "triptych.runs.encoding": ("Coder",),
    "triptych.runs.evaluation": ("Evaluation",),
    "triptych.runs.interchange": ("Exported", "export_run", "import_run"),
    "triptych.runs.latents": ("Latents", "between"),
    "triptych.runs.run": ("Run", "open_run"),
    "triptych.runs.sampling": ("Samples",),
    "triptych.runs.scoring": ("Scores", "score"),
    "triptych.runs.training": ("train",),
    "triptych.runs.translating": ("Translations",),
}
__getattr__ = lazy(__name__, _MODULES)  # sampling does not wait for the importers of other programs' weights
