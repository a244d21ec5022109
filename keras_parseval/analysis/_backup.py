"""A long evaluation on disk, so that one that was interrupted goes on where it was."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._findings import Findings

_FIELDS = [field.name for field in dataclasses.fields(Findings)]


class Backup:
    """What is known so far, in a file that is replaced as a whole.

    Args:
        path: The file, or `None` for no backup at all.
        settings: Text that tells this evaluation from others.
    """

    def __init__(self, path: Any, settings: str):
        self.path = None if path is None else Path(path)
        self.settings, self.parts = settings, 0
        self._saved: dict[str, np.ndarray] = {}
        if self.path is not None and self.path.exists():
            self._load()

    def _load(self) -> None:
        try:
            with np.load(self.path) as saved:  # type: ignore[arg-type]
                self._saved = dict(saved)
            settings = str(self._saved["settings"])
        except Exception as error:
            raise ValueError(
                "`backup` must be the path of a file that this evaluation wrote, or of none yet. "
                f"Received: backup={str(self.path)!r}, which cannot be read ({error})"
            ) from error
        if settings != self.settings:
            raise ValueError(
                "`backup` must be of the same model, data and settings; remove the file, or "
                f"choose another. Received: backup={str(self.path)!r}, of another evaluation"
            )

    def part(self, number: int, digest: str) -> Findings | None:
        """What is known of a part of the data, or `None`."""
        if f"{number}/digest" not in self._saved:
            return None
        if str(self._saved[f"{number}/digest"]) != digest:
            raise ValueError(
                "`backup` must be of the same data, in the same order; remove the file, or choose "
                f"another. Received: backup={str(self.path)!r}, and other data in part {number}"
            )
        return Findings(**{name: self._saved[f"{number}/{name}"].copy() for name in _FIELDS})

    def save(self, number: int, digest: str, found: Findings) -> None:
        """Save what is known of a part of the data, beside what is known of others."""
        if self.path is None:
            return
        self._saved["settings"] = np.array(self.settings)
        self._saved[f"{number}/digest"] = np.array(digest)
        for name in _FIELDS:
            self._saved[f"{number}/{name}"] = getattr(found, name)
        written = self.path.with_name(self.path.name + ".new")
        with open(written, "wb") as file:
            np.savez(file, **self._saved)  # type: ignore[arg-type]
        os.replace(written, self.path)

    def remove(self) -> None:
        """Remove the file of an evaluation that is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def describe_settings(model: Any, attack: Attack, **others: Any) -> str:
    """Text that differs for evaluations with other results: of other weights, for instance."""
    weights = digest_of([variable.value for variable in model.variables])
    attacks = [_settings_of(each) for each in attack.members()]
    return json.dumps({"weights": weights, "attacks": attacks, **others}, default=str)


def _settings_of(attack: Attack) -> dict[str, Any]:
    fields = {field.name: getattr(attack, field.name) for field in dataclasses.fields(attack)}
    plain = (str, int, float, tuple, type(None))
    named = {
        name: value if isinstance(value, plain) else getattr(value, "name", type(value).__name__)
        for name, value in fields.items()
    }
    if attack.mask is not None:
        named["mask"] = digest_of(attack.mask)
    return {"attack": type(attack).__name__, **named}


def digest_of(tensors: Any) -> str:
    """A fingerprint of the values of tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in keras.tree.flatten(tensors):
        array = np.ascontiguousarray(ops.convert_to_numpy(tensor))
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
