"""A user's annotated script: `mypy --strict` checks it, and `.ci/run` runs it with the wheel.

The lines with `type: ignore` are mistakes, and mypy must see each: it complains of an `ignore`
that nothing needs, as it would where types have been lost on the way.
"""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import keras_parseval as kp

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def points() -> tuple[Floats, Labels]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=64)
    x = rng.uniform(0, 0.5, size=(64, 6)) + 0.5 * np.eye(6)[y]
    return x.astype("float32"), y


def network() -> Any:
    frame = kp.tight_frame(beta=0.2)
    constraint = kp.ParsevalTightFrame(0.1, rows=0.5, unbiased=True)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, **frame)(inputs)
    y = keras.layers.Dense(8, kernel_constraint=constraint, kernel_initializer=kp.TightFrame())(x)
    x = kp.MaxMin()(kp.ConvexAdd()([x, y]))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def train(model: Any, x: Floats, y: Labels) -> dict[str, list[float]]:
    callbacks = [
        kp.AdversarialTraining(kp.FGSM(bounds=(0, 1)), epsilon=8 / 255, start_from_epoch=1),
        kp.AdversarialEvaluation(x, y, snr=(30, 20), attack=kp.IteratedFGSM(steps=2)),
        kp.SpectrumLogger(every=2),
    ]
    history: dict[str, list[float]]
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks).history
    return history


def attacked(model: Any, x: Floats, y: Labels) -> dict[float, float]:
    attack: kp.attacks.Attack = kp.attacks.PGD(steps=2, norm=2, bounds=(0, 1), restarts=2)
    x_adv = np.asarray(attack(model, x, y, epsilon=0.1))
    assert x_adv.shape == x.shape
    result: kp.analysis.RobustAccuracy = kp.robust_accuracy(
        model, x, y, epsilon=[0.05, 0.1], attack=attack, verbose=0
    )
    clean: float = result.clean
    measure: str = result.measure
    examples: int = result.examples
    assert 0 <= clean <= 1 and measure == "epsilon" and examples == len(x)
    return dict(zip(result.levels, result.accuracies))


def certified(model: Any, x: Floats, y: Labels) -> list[float]:
    result: kp.analysis.CertifiedAccuracy = kp.certified_accuracy(
        model, x, y, epsilon=0.1, norm="inf", method="operator"
    )
    bound: float = kp.lipschitz_bound(model, norm=2).bound
    names: list[str] = [entry.name for entry in kp.lipschitz_bound(model).entries]
    assert bound > 0 and len(names) >= 4
    return [result.clean, *result.accuracies]


def mistakes(model: Any, x: Floats, y: Labels) -> None:
    """What nobody should write. It is read, and never called."""
    kp.FGSM(epsilon=0.3)  # type: ignore[call-arg]
    kp.FGSM(0.3)  # type: ignore[call-arg]
    kp.FGSM(labels="all")  # type: ignore[arg-type]
    kp.IteratedFGSM(steps="many")  # type: ignore[arg-type]
    kp.ParsevalTightFrame(0.1, 0.5)  # type: ignore[call-arg]
    kp.ParsevalTightFrame(beta="large")  # type: ignore[arg-type]
    kp.TightFrame(gain=1.0)  # type: ignore[call-arg]
    kp.AdversarialTraining(kp.FGSM)  # type: ignore[arg-type]
    kp.AdversarialTraining(start=1)  # type: ignore[call-arg]
    kp.AdversarialEvaluation(x, y, every="epoch")  # type: ignore[arg-type]
    kp.SpectrumLogger(prefix=None)  # type: ignore[arg-type]
    kp.robust_accuracy(model, x, y, 0.1)  # type: ignore[call-arg]
    kp.robust_accuracy(model, x, y, attack=kp.FGSM)  # type: ignore[arg-type]
    print(kp.robust_accuracy(model, x, y).accuracy)  # type: ignore[attr-defined]
    kp.certified_accuracy(model, x, y)  # type: ignore[call-arg]
    kp.certified_radius(model, x, norm="max")  # type: ignore[arg-type]
    kp.certified_radius(model, x, method="exact")  # type: ignore[arg-type]
    kp.lipschitz_bound(model, method="exact")  # type: ignore[arg-type]
    kp.parseval(model, verbose=2)  # type: ignore[arg-type]
    kp.models.wide_resnet(16, 4, kind="vanilla")  # type: ignore[call-arg]
    kp.plots.bounds([kp.lipschitz_bound(model)])  # type: ignore[arg-type]
    clean: str = kp.robust_accuracy(model, x, y).clean  # type: ignore[assignment]
    bound: str = kp.lipschitz_bound(model).bound  # type: ignore[assignment]
    levels: str = kp.certified_accuracy(model, x, y, epsilon=0.1).levels  # type: ignore[assignment]
    attack: str = kp.FGSM()  # type: ignore[assignment]
    frame: str = kp.tight_frame()  # type: ignore[assignment]
    print(clean, bound, levels, attack, frame)


def main() -> None:
    x, y = points()
    model = network()
    history = train(model, x, y)
    assert {"val_adv_accuracy_snr20", "tightness"} <= history.keys(), sorted(history)
    print(f"keras_parseval {kp.__version__} on {keras.backend.backend()}")
    print(f"loss {history['loss'][-1]:.3f}, under attack {attacked(model, x, y)}")
    print(f"certified {certified(model, x, y)}")


if __name__ == "__main__":
    main()
