"""`mpifed export RUN`: a run's model in a file that other libraries read."""

from __future__ import annotations

import io
import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import job_of, read_run
from mpifed.files.write import replaced
from mpifed.results.show import must_be_run

Arrays = Mapping[str, Array]
About = Mapping[str, str]
_DATE = (1980, 1, 1, 0, 0, 0)  # of entries of a ZIP file: the first that there is


def export(run_dir: Path, form: str, out: Path | None = None) -> Path:
    """Write the arrays of a run's model, by name; the path of the file, which is replaced as a whole.

    Nothing from the folder is executed, no class of the user's own imported.

    Parameters
    ----------
    form : a key of `FORMS`
    out : by default next to the folder, with its name and that of the form

    Raises
    ------
    UsageError
        when the folder is that of a sweep, `out` lies in it, or a library is missing.
    DataError
        when it is not the folder of a run, or the run has no model yet.
    """
    suffix, encoded = FORMS[form]
    folder = run_dir if run_dir.name not in ("", "..") else run_dir.resolve()
    path = out or folder.with_name(folder.name + suffix)
    if folder.resolve() in path.resolve().parents:
        raise UsageError(f"--out {path}: lies in the run's folder, where all files are the run's own; name another")
    must_be_run(run_dir)
    run = read_run(run_dir)
    if run.get("exit") is None or not (run_dir / "model.h5").exists():
        raise DataError(f"{run_dir}: has no model yet; let the run reach its end, or go on with --resume")
    arrays = read_model(run_dir / "model.h5")
    about = {"name": str(job_of(run_dir).get("name", "")), "rounds": str(run.get("rounds"))}
    content = encoded(arrays, about | {"model_sha256": model_sha256(arrays)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        file.write(content)
    return path


def _npz(arrays: Arrays, about: About) -> bytes:
    """As `numpy.savez` writes it, whose arguments could not have all names; `about` is the comment of the ZIP file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, values in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _DATE), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values)
        archive.comment = json.dumps(dict(about)).encode()
    return content.getvalue()


def _safetensors(arrays: Arrays, about: About) -> bytes:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise _missing("safetensors", "safetensors") from error
    content: bytes = save({name: np.ascontiguousarray(values) for name, values in arrays.items()}, dict(about))
    return content


def _torch(arrays: Arrays, about: About) -> bytes:
    """A `state_dict`; `about` is its attribute `mpifed`."""
    try:
        import torch
    except ImportError as error:
        raise _missing("torch", "PyTorch") from error
    state = OrderedDict((name, torch.from_numpy(values)) for name, values in arrays.items())
    state.mpifed = dict(about)  # type: ignore[attr-defined]  # as modules of PyTorch add their `_metadata`
    content = io.BytesIO()
    torch.save(state, content)
    return content.getvalue()


def _missing(form: str, library: str) -> UsageError:
    return UsageError(f'--to {form}: {library} is missing; pip install "mpifed[torch]"')


# by name: the suffix of the file, and the function that gives its bytes
FORMS: Mapping[str, tuple[str, Callable[[Arrays, About], bytes]]] = {
    "safetensors": (".safetensors", _safetensors),
    "npz": (".npz", _npz),
    "torch": (".pt", _torch),
}
