"""What a report knows, as data: written as JSON, read back, and shown as a page."""

import dataclasses
import html
import json
import math
import os
from pathlib import Path
from typing import Any

from keras_parseval.analysis import (
    CertifiedAccuracy,
    LipschitzBound,
    LipschitzEntry,
    RobustAccuracy,
)
from keras_parseval.reports._page import render

FORMAT = "keras_parseval robustness report"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class FallenExample:
    """An example that an attack changed the answer for.

    Args:
        index: Which of the examples it is.
        label: The true class.
        before: The model's answer to the example as it was.
        after: Its answer to the perturbed example.
        epsilon: The smallest size of attack at which it fell.
        snr: The signal-to-noise ratio of the perturbed example, in decibels.
        attack: What attacked.
        pictures: The example as it was, perturbed, and the difference, as PNG in data URIs; empty
            if the inputs are not images.
        magnified: By how much the picture of the difference is magnified.
        changes: The largest changes: where, before, and after. Empty for images.
    """

    index: int
    label: str
    before: str
    after: str
    epsilon: float
    snr: float
    attack: str
    pictures: tuple[str, ...]
    magnified: float
    changes: tuple[tuple[str, float, float], ...]


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """The singular values of a kernel, relative to those of a tight frame.

    Args:
        name: The kernel, by the name of its layer.
        count: How many singular values it has.
        quantiles: The smallest, the quartiles, and the largest.
        tightness: How far it is from a tight frame, see `kp.tightness`.
    """

    name: str
    count: int
    quantiles: tuple[float, ...]
    tightness: float


@dataclasses.dataclass(frozen=True)
class RobustnessReport:
    """What `kp.report` found. A notebook shows it as the page.

    Args:
        model: The name of the model.
        norm: The norm that sizes are measured in, `"inf"` or 2.
        verdict: Three sentences: what is certified, what was broken, and what is not known.
        certified_to: No change of a smaller size alters half of the right answers. 0 if nothing
            is certified.
        attacked_from: The smallest size at which attacks took more than half of the right answers
            away; `None` if they did so at none.
        attacked: The accuracy under attack.
        certified: The certified accuracy; `None` if there is none.
        radii: The certified radius of each example; empty if nothing is certified.
        lipschitz: The Lipschitz bound of the model; `None` if it has none.
        advice: What makes the bound large, and what to change, a sentence each.
        spectra: The singular values of each kernel.
        fallen: The examples that fell first.
        refusals: Why a part is missing, by the name of the part, in the words of the error.
        scale: What a size means for these examples, in a sentence.
        facts: How it was measured.
        command: How to repeat it.
        warnings: What the reader should be warned of, a sentence each.

    Example:

    ```python
    import tempfile

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    result = kp.report(model, x, y, attack=kp.attacks.PGD(norm=2, steps=5))
    with tempfile.TemporaryDirectory() as folder:
        result.save(f"{folder}/report.html")
        again = kp.RobustnessReport.load(f"{folder}/report.json")
    print(again)
    ```
    """

    model: str
    norm: Any
    verdict: tuple[str, ...]
    certified_to: float
    attacked_from: float | None
    attacked: RobustAccuracy
    certified: CertifiedAccuracy | None
    radii: tuple[float, ...]
    lipschitz: LipschitzBound | None
    advice: tuple[str, ...]
    spectra: tuple[Spectrum, ...]
    fallen: tuple[FallenExample, ...]
    refusals: dict[str, str]
    scale: str
    facts: dict[str, str]
    command: str
    warnings: tuple[str, ...]

    def to_html(self) -> str:
        """The page, as one string without links to anything else."""
        return render(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything on the page, in lists, dictionaries, strings and numbers."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to `path`, and its data beside it, with the suffix `.json`."""
        page = Path(path)
        _write(page, self.to_html())
        _write(page.with_suffix(".json"), json.dumps(_encode(self.to_dict()), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RobustnessReport":
        """Read the JSON that `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"), object_hook=_decode)
        except ValueError as error:
            raise ValueError(_NOT_A_REPORT + f"Received: '{path}', which is no JSON") from error
        found = data.get("format") if isinstance(data, dict) else None
        if found != FORMAT or data.pop("version") != VERSION:
            raise ValueError(_NOT_A_REPORT + f"Received: '{path}', with format {found!r}")
        del data["format"]
        data["attacked"] = _made(RobustAccuracy, data["attacked"])
        data["certified"] = _made(CertifiedAccuracy, data["certified"])
        if data["lipschitz"]:
            entries = [_made(LipschitzEntry, entry) for entry in data["lipschitz"]["entries"]]
            data["lipschitz"] = _made(LipschitzBound, {**data["lipschitz"], "entries": entries})
        data["spectra"] = [_made(Spectrum, each) for each in data["spectra"]]
        data["fallen"] = [_made(FallenExample, each) for each in data["fallen"]]
        return _made(cls, data)

    def __str__(self) -> str:
        return "\n".join([f"Robustness of '{self.model}'", *self.verdict])

    def _repr_html_(self) -> str:
        # In a frame, so that neither its style nor the notebook's reaches the other.
        page = html.escape(self.to_html())
        style = "width:100%;height:80vh;border:0"
        return f'<iframe title="Robustness report" style="{style}" srcdoc="{page}"></iframe>'


_NOT_A_REPORT = (
    f"The file must be a report in JSON, version {VERSION}, as `RobustnessReport.save` writes it; "
    "make it again with this version of keras_parseval. "
)


def _made(kind: Any, values: Any) -> Any:
    """The object with these fields, where lists stand for tuples; `None` for nothing."""
    return values and kind(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _encode(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: _encode(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _decode(found: dict[str, Any]) -> Any:
    return float(found["float"]) if found.keys() == {"float"} else found


def _write(path: Path, text: str) -> None:
    """All of it or nothing, also if the machine stops."""
    partial = path.with_name(path.name + ".new")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
