"""How often a classifier finds in a sample the class that it was drawn for."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64, Int64

from triptych.core.errors import DataError


def class_found(logits: Float[np.ndarray, "b classes"], labels: Int64[np.ndarray, " b"]) -> Float64[np.ndarray, " b"]:
    """1 for each sample whose largest logit is its label's, else 0; of equal logits the first counts.

    The mean over samples is the accuracy. Raises DataError for a label that the classifier does not have, and for logits that are not
    finite.
    """
    classes = logits.shape[1]
    unknown = (labels < 0) | (labels >= classes)
    if unknown.any():
        drawn = f"sample {int(unknown.argmax())} of these was drawn for class {int(labels[unknown][0])}"
        raise DataError(f"{drawn}, the classifier knows 0 to {classes - 1}")
    if not np.isfinite(logits).all():
        raise DataError(f"the classifier's logits of sample {int((~np.isfinite(logits)).any(1).argmax())} of these are not finite")
    return (logits.argmax(1) == labels).astype(np.float64)
