"""The Python API: `train(config, run_dir)`, and `open_run(run_dir)` for what a trained run can do.

from triptych.recipes.diffusion import adm_digits
from triptych.runs import open_run, train

train(adm_digits(), "runs/digits")
samples = open_run("runs/digits").sample(64, seed=0, labels=[3, 7])
samples.images  # uint8, (64, 16, 16, 1)
"""

from triptych.engine.distributed import close_world
from triptych.runs.directions import Directions
from triptych.runs.encoding import Coder
from triptych.runs.evaluation import Evaluation
from triptych.runs.interchange import Exported, export_run, import_run
from triptych.runs.latents import Latents, between
from triptych.runs.run import Run, open_run
from triptych.runs.sampling import Samples
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
    "Translations",
    "between",
    "close_world",
    "export_run",
    "import_run",
    "open_run",
    "train",
]
