"""The fast gradient method: one step up the gradient of the loss."""

import dataclasses
from typing import Any

from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._problem import Problem


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FGSM(Attack):
    """The fast gradient method: one step of size epsilon up the gradient of the loss.

    With `norm="inf"` it is the fast gradient sign method, `x + epsilon sign(g)`, and
    with `norm=2` the step `x + epsilon g / ||g||`.

    Calling the attack crafts a batch: `x_adv = attack(model, x, y, epsilon=0.1)`. That is
    compiled once for each model, whatever epsilon, and changes nothing in the
    model, its metrics or any random state. The model runs in inference mode.
    A cross-entropy is raised through the logits, which are reached behind a softmax
    or sigmoid at the end of the model, and in a form whose gradient
    does not vanish where the model is sure. Label smoothing and soft labels
    make no difference: an attack is on the decision for a class.

    Args:
        norm: The norm that perturbations are measured in, `"inf"` or 2. Defaults to `"inf"`.
        labels: Whose loss to increase. `"true"`: that of the true label, which must then be
            given. `"predicted"`: that of the class the model predicts. `"least_likely"`: the
            loss of the least likely class is decreased. `None` stands for the true labels
            where they are given, and for the predicted ones where they are not, and in
            `kp.AdversarialTraining`, into which no true label should leak. Defaults to `None`.
        bounds: `None`, or the smallest and largest value that an input can have,
            as `(low, high)`; adversarial examples are kept between. Defaults to `None`.
        mask: `None`, or an array that broadcasts to the input, 0 where a
            feature must stay as it is and 1 where it may move. Defaults to `None`.
        loss: The loss to increase: any function of integer labels and the model's
            output. `None` stands for the cross-entropy that the model was compiled with.
            Defaults to `None`.
        perturb: For a model with several inputs, the name (of a dictionary) or
            index (of a list) of the one to perturb. Defaults to `None`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    attack = kp.FGSM(bounds=(0, 1))
    x, y = keras.random.uniform((16, 8)), keras.ops.zeros(16, "int32")
    x_adv = attack(model, x, y, epsilon=0.1)
    ```
    """

    def perturbation(self, problem: Problem) -> Any:
        """One step, as far as epsilon allows."""
        return problem.limit(problem.epsilon * problem.ascend())

    def perturbed_levels(self, problem: Problem, count: int, epsilon: Any) -> Any:
        """The inputs at several levels, from one gradient: it does not depend on epsilon."""
        several = problem.repeated(count, epsilon)
        direction = problem.repeat(problem.ascend(), count)
        return several.move(several.limit(several.epsilon * direction))


def check_attack(attack: Attack | None) -> Attack:
    """Return the attack, by default one step of FGSM, or raise."""
    if attack is None:
        return FGSM()
    if not isinstance(attack, Attack):
        raise TypeError(
            "`attack` must be None or an attack, such as `kp.FGSM()` or "
            f"`kp.IteratedFGSM(steps=20)`. Received: attack={attack!r}"
        )
    return attack
