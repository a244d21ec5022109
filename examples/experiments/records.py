"""The record of experiments: lines of JSON that are never seen half-written, and tables of them."""

import json
import os
import platform

import keras
import numpy as np

import keras_parseval as kp


def read_runs(folder):
    """The finished runs, by name."""
    return {record["name"]: record for record in read(folder / "runs.jsonl")}


def add_run(folder, record):
    """Add a finished run to the record of a folder."""
    append(folder / "runs.jsonl", record)


def read(path):
    """The lines of a record; none if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def append(path, record):
    """Add a line, so that the file is never seen half-written."""
    text = "".join(json.dumps(each) + "\n" for each in [*read(path), record])
    write_atomically(path, lambda unfinished: unfinished.write_text(text))


def write_atomically(path, write):
    """Let `write` make a file, which appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The ending stays, because Keras and NumPy go by it.
    unfinished = path.with_name(f"unfinished-{path.name}")
    write(unfinished)
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def versions():
    """With what a line was made."""
    backend = keras.backend.backend()
    return {
        "python": platform.python_version(),
        "keras_parseval": kp.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        backend: __import__(backend).__version__,
    }


def machine():
    """On what a line was made."""
    return {"platform": platform.platform(), "cores": os.cpu_count()}


def markdown(heading, rows):
    """A table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
