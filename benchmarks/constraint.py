"""A training step with tight, nearly tight or merely bounded kernels, and how tight they end up."""

import collections.abc
import dataclasses
import math

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import networks, peers

RATE, MOMENTUM, BETA = 0.1, 0.0, 1e-2


def _option(**options):
    return lambda layer_class, config: layer_class.from_config(config | options)


def _frame(**options):
    return _option(kernel_constraint=kp.ParsevalTightFrame(BETA, **options))


def _unit_norm(layer_class, config):
    # One norm for each output unit.
    axis = 0 if layer_class is keras.layers.Dense else [0, 1, 2]
    return _option(kernel_constraint=keras.constraints.UnitNorm(axis))(layer_class, config)


def _spectral_normalization(layer_class, config):
    return keras.layers.SpectralNormalization(layer_class.from_config(config))


def _deel_lip(layer_class, config):
    from deel.lip import layers

    return layers.SpectralDense(config["units"], activation=config["activation"])


OURS = {
    "plain": _option(),
    "ParsevalTightFrame": _frame(),
    "ParsevalTightFrame, rows=0.3": _frame(rows=0.3),
    "ParsevalTightFrame, rows=0.1, unbiased": _frame(rows=0.1, unbiased=True),
    # Its gradient is multiplied by the learning rate, and summed by momentum.
    "TightFrameRegularizer": _option(
        kernel_regularizer=kp.TightFrameRegularizer(BETA / RATE * (1 - MOMENTUM))
    ),
}
# Both parts of a Parseval network, where there are branches to merge.
BOTH = "ParsevalTightFrame, ConvexAdd"
KERAS = {
    "keras UnitNorm": _unit_norm,
    "keras SpectralNormalization": _spectral_normalization,
}
# Keras has it for matrices alone.
KERAS_DENSE = {
    "keras OrthogonalRegularizer": _option(kernel_regularizer="orthogonal_regularizer"),
    **KERAS,
}


@dataclasses.dataclass
class Constraint:
    """The benchmark for one network."""

    name: str
    network: collections.abc.Callable
    contestants: dict
    batch: int
    batches: int
    rounds: int

    @property
    def title(self):
        updates = self.batches * (self.rounds + 1)
        return f"A training step of {self.name} with XLA, and tightness after {updates} steps"

    def run(self):
        base = self.network()
        models = {
            name: networks.compiled(networks.with_hidden_layers(base, change), RATE, MOMENTUM)
            for name, change in self.contestants.items()
        }
        if any(isinstance(layer, keras.layers.Add) for layer in base.layers):
            merged = networks.with_convex_add(base)
            both = networks.with_hidden_layers(merged, OURS["ParsevalTightFrame"])
            models[BOTH] = networks.compiled(both, RATE, MOMENTUM)
        models |= self._deel_lip(base)
        rows = networks.compare_fits(models, self.batch, self.batches, self.rounds)
        for row in rows:
            row["tightness"] = _tightness(models[row["contestant"]])
        return rows

    def _deel_lip(self, base):
        """deel-lip's spectral layers, where they run."""
        if self.contestants is not DENSE:
            return {}

        def build(model):
            return networks.compiled(networks.with_hidden_layers(model, _deel_lip), RATE, MOMENTUM)

        trial = networks.multilayer(1, 8, 8)
        runs = peers.runs("deel.lip", lambda: build(trial).fit(*networks.examples(trial, 8)))
        return {"deel-lip SpectralDense": build(base)} if runs else {}


def _tightness(model):
    """The root mean square over all hidden kernels."""
    # A wrapper holds the layer that was meant.
    layers = [getattr(layer, "layer", layer) for layer in model.layers]
    values = [float(kp.tightness(layer)) for layer in layers if hasattr(layer, "kernel")]
    return round(math.sqrt(np.mean(np.square(values[:-1]))), 5)


DENSE, CONVOLUTIONS = {**OURS, **KERAS_DENSE}, {**OURS, **KERAS}
BENCHMARKS = {
    "constraint_mlp_1024": Constraint(
        "an MLP 3 x 1024 (batch 128)", lambda: networks.multilayer(3, 1024), DENSE, 128, 10, 9
    ),
    "constraint_mlp_2048": Constraint(
        *("the paper's MLP 4 x 2048 (batch 100)", lambda: networks.multilayer(4, 2048)),
        *(DENSE, 100, 4, 9),
    ),
    "constraint_convnet": Constraint(
        "a small convnet (batch 64)", networks.small_convnet, CONVOLUTIONS, 64, 10, 15
    ),
    "constraint_wrn_16_4": Constraint(
        "WRN-16-4 (batch 64)", networks.wide_resnet, CONVOLUTIONS, 64, 3, 5
    ),
}
