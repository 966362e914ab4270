"""What other programs call a setting, and what it is here: for the message about a flag that is not known."""

from __future__ import annotations

from collections.abc import Collection

from triptych.core.errors import nearest

_LENGTH = "the length of a run is counted in images seen"
_RESUME = "the same command with the same --run goes on from its newest checkpoint"
_SEVERAL = "a GPU is used without asking; for several: torchrun --standalone --nproc-per-node 4 -m -- triptych ..."

_SYNONYMS = (
    ("lr learning_rate", "--optim.learning-rate", ""),
    ("batch bs batchsize minibatch", "--train.batch-size --batch-size", ""),
    ("epochs epoch num_epochs max_epochs", "--train.total-images", f"{_LENGTH}: epochs times the number of training images"),
    ("steps num_steps max_steps iterations iters max_iter", "--train.total-images", f"{_LENGTH}: steps times --train.batch-size"),
    ("kimg", "--train.total-images", f"{_LENGTH}: --train.total-images 500k"),
    ("resume resume_from continue restore restart load", "--init-from", f"{_RESUME}; the weights of another run begin a new one"),
    ("pretrained init finetune", "--init-from", ""),
    ("gpus gpu num_gpus ngpu ngpus devices nproc", "--device", _SEVERAL),
    ("outdir out output output_dir logdir log_dir save_dir name exp exp_name o", "--run --out", ""),
    ("n num num_samples num_images nimages samples", "--count", ""),
    ("class classes label", "--labels", ""),
    ("data dataset data_dir dataset_dir dataroot root train_dir", "--data.path", ""),
    ("size resolution res img_size imsize", "--data.image-size", ""),
    ("num_workers loader_workers", "--data.workers", ""),
    ("amp half fp16 bf16 dtype mixed_precision", "--train.precision --precision", ""),
    ("ema ema_rate ema_decay", "--train.ema-rates --weights", ""),
    ("warmup warmup_steps warmup_iters", "--optim.warmup-images", "it is counted in images seen: steps times --train.batch-size"),
    ("wd", "--optim.weight-decay", ""),
    ("clip grad_clip max_grad_norm", "--optim.clip-norm", ""),
    ("optimizer opt", "--optim.name", ""),
    ("scheduler lr_schedule lr_scheduler", "--optim.schedule", ""),
    ("accumulate grad_accum gradient_accumulation_steps", "--train.microbatch", "--train.batch-size is that of a whole step"),
    ("save_every save_interval save_freq snap", "--train.checkpoint-every", "it is counted in images seen"),
    ("log_interval log_every print_freq", "--log.every", "it is counted in images seen"),
    ("eval_every eval_interval val_every", "--train.validate-every", "it is counted in images seen"),
    ("cfg cfg_scale guidance scale", "--guidance-scale", ""),
    ("ckpt", "--checkpoint --init-from", ""),
    ("prompt prompts text caption", "--labels", "no model here knows text: some draw classes, by number or name"),
)
"""Words, the settings that they may mean (the first that the command has), and what has to be said of it."""


VERBS = (
    ("version", "--version"),
    ("list ls runs_list status ps", "runs"),
    ("watch monitor log logs tensorboard", "report"),
    ("doctor check validate", "data doctor"),
    ("stats statistics", "data stats"),
    ("pack prepare preprocess dataset", "data pack"),
    ("show preview", "data show"),
    ("generate gen draw prompt infer inference", "sample"),
    ("fid eval test metrics score", "evaluate"),
    ("resume continue fit finetune", "train"),
    ("estimate memory profile", "plan"),
    ("convert load", "import"),
    ("save", "export"),
    ("ema", "average"),
    ("pix2pix img2img", "translate"),
)
"""Words, and the command or option that does what they name."""


def verb_hint(name: str, verbs: Collection[str]) -> str:
    """What a command that is not known seems to mean, as `hint` says it."""
    word = name.lstrip("-").replace("-", "_").lower()
    meant = next((target for words, target in VERBS if word in words.split()), None)
    known = ("--help", "--version", "--debug") if name.startswith("-") else verbs
    return nearest(name, known) if meant is None else f'; did you mean "{meant}"?'


def hint(name: str, flags: Collection[str]) -> str:
    """What a flag that is not among `flags` seems to mean: `; did you mean "--x"?`, with a reason, or an empty string."""
    word = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
    for words, targets, reason in _SYNONYMS:
        target = next((flag for flag in targets.split() if flag in flags), None)
        if word in words.split() and target is not None:
            return f'; did you mean "{target}"?' + (f" ({reason})" if reason else "")
    hyphened = word.replace("_", "-")
    same = [flag for flag in flags if flag.lstrip("-").rpartition(".")[2] == hyphened]
    if len(same) == 1:
        return f'; did you mean "{same[0]}"?'
    begun = [flag for flag in flags if flag.startswith(f"--{hyphened}")]
    return f'; did you mean "{begun[0]}"?' if len(begun) == 1 else nearest(name, flags)
