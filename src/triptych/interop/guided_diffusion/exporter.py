"""Runs as files of guided-diffusion: the weights as a .pt, and its scripts' flags beside it."""

from __future__ import annotations

from triptych.core.errors import ConfigError
from triptych.core.weight_files import write_weights
from triptych.interop.flags import command_line
from triptych.interop.guided_diffusion.configs import original_flags
from triptych.interop.guided_diffusion.weights import to_state_dict
from triptych.interop.programs import Exported, ExportRequest, check_replaced, latent_notes, write_beside


def exported(request: ExportRequest) -> Exported:
    """Writes both files; an earlier export is replaced. Raises as `programs.exported` does."""
    out = request.out
    if request.drop_variance:
        raise ConfigError("drop_variance", "guided-diffusion makes no use of it: leave it out, or export to diffusers")
    if out.suffix != ".pt":
        raise ConfigError("out", f"got {str(out)!r}, expected the name of a file that ends with .pt")
    original = original_flags(request.config, request.spec)
    flags, beside = command_line(original.flags), out.with_suffix(".flags.txt")
    check_replaced([out], beside, flags + "\n")
    state = to_state_dict(request.load())
    write_beside(beside, flags + "\n")
    write_weights(state, out)
    return Exported((out, beside), flags, (*original.notes, *latent_notes(request.spec)))
