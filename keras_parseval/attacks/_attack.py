"""What every attack shares: its settings, how it is called, and what it has to implement."""

import dataclasses
from typing import Any, ClassVar, Literal, TypeVar

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_parseval._backend import NoGradientError, call_compiled, check_values
from keras_parseval._batches import as_inputs, as_labels, check_labels
from keras_parseval._classifier import Classifier, not_a_number
from keras_parseval._compiled_loss import check_model, compiled_loss
from keras_parseval._seed import Seed
from keras_parseval._validation import Norm, check_choice, check_integer, check_norm
from keras_parseval.attacks._inputs import check_batch, check_bounds, check_inputs
from keras_parseval.attacks._levels import (
    align_epsilon,
    check_amount,
    check_epsilon,
    epsilon_for_snr,
)
from keras_parseval.attacks._problem import Problem

Labels = Literal["true", "predicted", "least_likely"]
Self = TypeVar("Self", bound="Attack")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Attack:
    """The base of all attacks: how a perturbation is looked for, not how large it may be.

    An attack of your own is a frozen dataclass with one method, `perturbation`. Everything
    else, from the checks to the compiled evaluation at several levels, works with it. One that
    starts several times over has a second method, `rounds`.

    All arguments are those of `kp.FGSM`.

    Example:

    ```python
    import dataclasses


    @dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
    class RandomNoise(kp.attacks.Attack):
        def perturbation(self, problem):
            return problem.random(problem.seed)


    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x_adv = RandomNoise(norm=2)(model, keras.random.uniform((16, 8)), epsilon=0.1)
    ```
    """

    norm: Norm = "inf"
    labels: Labels | None = None
    bounds: tuple[float, float] | None = None
    mask: ArrayLike | None = None
    loss: Any = None
    perturb: str | int | None = None

    # Whether it follows the gradient of the model.
    uses_gradient: ClassVar[bool] = True
    # Whether each of its rounds goes on where the one before it ended.
    continues: ClassVar[bool] = False
    # Whether it looks for the worst case, and so need not look at what a smaller epsilon broke.
    searches: ClassVar[bool] = False

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments or {"epsilon", "snr"} & options.keys():
            raise TypeError(
                "An attack must be given its settings by keyword, and epsilon (or snr) only when "
                f"it is called: `attack = {cls.__name__}()`, then "
                "`attack(model, x, y, epsilon=0.1)`, or "
                "`kp.robust_accuracy(model, x, y, attack=attack, epsilon=0.1)`. "
                f"Received: {', '.join([*map(repr, arguments), *options])}"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._set(norm=check_norm(self.norm), bounds=check_bounds(self.bounds))
        check_choice("labels", self.labels, (None, "true", "predicted", "least_likely"))
        if self.mask is not None:
            # A copy, so that an attack does not change with the user's array.
            self._set(mask=np.array(self.mask))
            self.mask.setflags(write=False)  # type: ignore[union-attr]
        if not (self.perturb is None or isinstance(self.perturb, str)):
            rule = "None, the name of an input or its index, 0 or more"
            check_integer("perturb", self.perturb, rule, lambda value: value >= 0)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __call__(
        self,
        model: Any,
        x: Any,
        y: Any = None,
        *,
        epsilon: ArrayLike | None = None,
        snr: float | None = None,
    ) -> Any:
        """Craft adversarial versions of a batch.

        Compiled once for each model, whatever epsilon. Nothing changes in the model, its metrics
        or any random state. The model runs in inference mode.

        Args:
            model: A compiled Keras classifier.
            x: The inputs, one batch: arrays or tensors, as the model takes them.
            y: The labels. Without them, the model's own predictions are attacked.
            epsilon: Size of the perturbation, in the units of the model's input:
                8/255 for pixels in [0, 1] is 8 for pixels in [0, 255]. A number,
                one for each example, or (with `norm="inf"`) one for each channel,
                the last axis.
            snr: In place of `epsilon`, the signal-to-noise ratio in decibels that each
                example shall have after the largest perturbation.

        Returns:
            A tensor like `x`, or the same structure of tensors for several inputs.
        """
        check_model(model)
        check_amount(epsilon, snr)
        attack = self._settled(y)
        x, y = as_inputs(x), as_labels(y)
        check_values(x)
        clean = check_batch(attack, x)
        if not model.built:
            model(x)
        attack.classifier(model).check_probabilities(x)
        if epsilon is None:
            epsilon = epsilon_for_snr(clean, snr, self.norm, self.mask)  # type: ignore[arg-type]
        epsilon = align_epsilon(check_epsilon(epsilon), clean.shape, self.norm)
        tensors = {"x": x, "epsilon": epsilon}
        if attack.labels == "true":
            check_labels(model, self.classifier_loss, y, len(clean))
            tensors["y"] = y
        if self.mask is not None:
            tensors["mask"] = self.mask

        def craft(model: Any, tensors: dict[str, Any]) -> Any:
            return attack.problem(attack.classifier(model), tensors).solution()

        crafted = call_compiled(model, attack.static_key(model), craft, tensors)
        moved = ops.convert_to_numpy(self.select(crafted))
        if not np.isfinite(moved).all():
            raise not_a_number(model)
        # An epsilon may be so small that it is lost in rounding, at most of the inputs.
        least = (epsilon / np.sqrt(clean[0].size)).astype(clean.dtype)
        felt = (clean + least != clean).mean() > 0.5
        if felt and (moved == clean).all():
            raise NoGradientError
        return crafted

    def craft(
        self, model: Any, x: Any, y: Any = None, *, epsilon: Any, seed: int | None = None
    ) -> Any:
        """Craft adversarial versions of a batch of tensors, inside compiled code of your own.

        A call of the attack compiles itself, and looks at the data. This does neither, so that it
        works inside `tf.function`, `jax.jit` and training loops. The model must be built. In a pure
        function of its variables, call it within a `keras.StatelessScope` over their values.

        Args:
            model: A Keras classifier that is built, and compiled with a loss.
            x: The inputs, one batch of tensors, as the model takes them.
            y: The labels. Without them, the model's own predictions are attacked.
            epsilon: Size of the perturbation, in the units of the model's input: a number, or
                a tensor that broadcasts to the input.
            seed: Seed of random starts. Defaults to the attack's own.

        Returns:
            A tensor like `x`, or the same structure of tensors. No gradient flows through it.
        """
        attack, tensors = self._settled(y), {"x": x, "epsilon": epsilon}
        check_inputs(attack, x)
        if y is not None:
            tensors["y"] = y
        if self.mask is not None:
            tensors["mask"] = self.mask
        told = None if seed is None else Seed(seed)
        crafted = attack.problem(attack.classifier(model), tensors, told).solution()
        return keras.tree.map_structure(ops.stop_gradient, crafted)

    def _settled(self: Self, y: Any) -> Self:
        """The same attack with its labels settled, or an error if they are missing."""
        attack = self.with_labels("predicted" if y is None else "true")
        if attack.labels == "true" and y is None:
            raise ValueError(
                'An attack with labels="true" must be given the labels; pass `y`, or use '
                'labels="predicted". Received: y=None'
            )
        return attack

    @property
    def classifier_loss(self) -> Any:
        """The loss that says what the model's outputs and labels mean; `None` for its own."""
        return self.loss

    def classifier(self, model: Any) -> Classifier:
        """The model as the attack sees it."""
        return Classifier(model, self.classifier_loss)

    def problem(self, classifier: Classifier, tensors: dict[str, Any], seed: Any = None) -> Problem:
        """The problem of a batch: `x` and `epsilon`, and what else there is."""
        others = {name: value for name, value in tensors.items() if name not in ("x", "y")}
        return Problem(self, classifier, tensors["x"], tensors.get("y"), seed=seed, **others)

    def rounds(self, classes: int) -> int:
        """How many rounds the attack has, for so many classes: restarts, for instance."""
        return 1

    def members(self) -> "tuple[Attack, ...]":
        """The attacks that this one consists of."""
        return (self,)

    def check_shape(self, shape: tuple[int | None, ...]) -> None:
        """Raise if inputs of this shape cannot be attacked in this way."""

    def perturbation(self, problem: Problem) -> Any:
        """The perturbation of a batch, in one round: what an attack has to implement, on tensors.

        Args:
            problem: The batch, with all that may be asked about it.

        Returns:
            A tensor like `problem.x`, that `problem.limit` leaves as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `perturbation`.")

    def perturbed_levels(self, problem: Problem, count: int, epsilon: Any) -> Any:
        """The inputs at several levels, one after the other along the first axis.

        Args:
            problem: The batch; its own epsilon does not matter.
            count: The number of levels.
            epsilon: An epsilon for each level and example, with the rank of the input.
        """
        return problem.repeated(count, epsilon).solution()

    def describe(self) -> str:
        """The attack in a few words, for tables."""
        return f"{type(self).__name__} (norm {self.norm}, {self.labels} labels)"

    def with_labels(self: Self, default: Labels) -> Self:
        """The same attack, with `labels` settled where it was `None`."""
        return dataclasses.replace(self, labels=default) if self.labels is None else self

    def static_key(self, model: Any) -> tuple[Any, ...]:
        """Everything that a compiled attack depends on, save the tensors."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["mask"]
        told = self.classifier_loss
        return type(self), tuple(fields.items()), compiled_loss(model) if told is None else told

    def select(self, inputs: Any) -> Any:
        """The one input to perturb."""
        return inputs if self.perturb is None else inputs[self.perturb]

    def replace(self, inputs: Any, x: Any) -> Any:
        """The inputs with `x` in place of the one to perturb."""
        if self.perturb is None:
            return x
        if isinstance(inputs, dict):
            return {**inputs, self.perturb: x}
        replaced = [x if index == self.perturb else each for index, each in enumerate(inputs)]
        return type(inputs)(replaced)
