"""What the examples show on a terminal: how far a training is, and no start-up log.

Import it before Keras, which it imports without the log that TensorFlow writes when it starts.
"""

import contextlib
import os
import sys
import time


@contextlib.contextmanager
def _discarded_stderr():
    """Discard what is written to the standard error, by libraries in C++ as well."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
silent = os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
# TensorFlow 2.21 heeds the level only when it is loaded, and has written a few lines by then.
with _discarded_stderr() if silent else contextlib.nullcontext():
    import keras


class Progress(keras.callbacks.Callback):
    """Shows how far a training is.

    On a terminal that is a line of its own, which changes with every epoch and vanishes at the end.
    A summary is printed then, and is all that a file receives.

    Args:
        name: What is trained.
        summary: Whether the summary is printed. Defaults to `True`.
    """

    def __init__(self, name, summary=True):
        super().__init__()
        self.name, self.summary = name, summary

    def on_train_begin(self, logs=None):
        self._started = time.perf_counter()
        self._show(f"Training {self.name} ...")

    def on_epoch_end(self, epoch, logs=None):
        epochs = f"epoch {epoch + 1} of {self.params['epochs']}"
        self._done = f"loss {logs['loss']:.3f} after {epochs}"
        self._show(f"Training {self.name}: {self._done}")

    def on_train_end(self, logs=None):
        self._show("")
        if self.summary:
            seconds = time.perf_counter() - self._started
            print(f"Trained {self.name} in {seconds:.0f} s: {self._done}", flush=True)

    def _show(self, line):
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
