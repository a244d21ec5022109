"""What commands that train have in common: their options, and the order of events."""

import math
import tempfile
from pathlib import Path

from .. import data
from .records import add_run, read_runs


def add_shared_options(parser, out):
    """Add the options of data, seeds and output; `out` is the directory by default."""
    add = parser.add_argument
    add("--dataset", default="digits", choices=list(data.SOURCES))
    add("--data-dir", help="where tensorflow-datasets has prepared the data; else it downloads")
    add("--limit", type=int, help="use this many training images, and no more of the others")
    add("--full", action="store_true", help="train on the validation images too")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--out", default=out, help="directory for everything that is written")
    add("--verbose", type=int, default=2, choices=(0, 1, 2), help="as in `fit`")


def load_data(options):
    """The data set that was asked for."""
    return data.load(options.dataset, options.data_dir, options.limit, options.full)


def check(name, value, rule, holds):
    """Raise if a number is not finite, or does not hold to its rule."""
    if not (math.isfinite(value) and holds):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")


def check_seeds(seeds):
    for seed in seeds:
        check("seeds", seed, "integers, 0 or more", seed >= 0)


def prepare_folder(out):
    """The directory for the results, of which it is certain that it can be written to."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            "`--out` must be a directory that can be written to, or made; choose another. "
            f"Received: {out!r} ({error})"
        ) from error
    return folder


def checkpoint_of(folder, run):
    return folder / "checkpoints" / f"{run.name}.npz"


def execute_all(runs, folder, execute):
    """Do what is not finished, one run after the other, and yield each new line of the record.

    Args:
        runs: The runs.
        folder: Where their record is.
        execute: Called with a run and the path of its checkpoint, for its line.
    """
    for number, run in enumerate(runs, start=1):
        finished = run.name in read_runs(folder)
        print(f"[{number}/{len(runs)}] {run.name}{': finished before' * finished}", flush=True)
        if not finished:
            checkpoint = checkpoint_of(folder, run)
            record = execute(run, checkpoint)
            add_run(folder, record)
            checkpoint.unlink(missing_ok=True)
            yield record
