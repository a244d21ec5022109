"""A training step with tight, nearly tight or merely bounded kernels."""

import dataclasses

import keras

import keras_parseval as kp
from benchmarks import networks, peers

RATE, MOMENTUM = 0.1, 0.0


def _option(**options):
    return lambda layer_class, config: layer_class.from_config(config | options)


def _frame(**options):
    return _option(kernel_constraint=kp.ParsevalTightFrame(**options))


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
    "ParsevalTightFrame()": _frame(),
    "ParsevalTightFrame(rows=1.0)": _frame(rows=1.0),
    "ParsevalTightFrame(rows=0.1, unbiased=True)": _frame(rows=0.1, unbiased=True),
    "ParsevalTightFrame(3e-4, rows=0.3), the paper's": _frame(beta=3e-4, rows=0.3),
}
# Its gradient is multiplied by the learning rate.
PENALTY = {"TightFrameRegularizer": _option(kernel_regularizer=kp.TightFrameRegularizer(0.1))}
# Both parts of a Parseval network, where there are branches to merge.
BOTH = "ParsevalTightFrame(), ConvexAdd"
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
class Constraint(networks.TrainingStep):
    """The benchmark for one network."""

    contestants: dict

    def run(self):
        base = self.network()
        everywhere = keras.backend.backend() == "tensorflow"
        models = {
            name: networks.compiled(networks.with_hidden_layers(base, change), RATE, MOMENTUM)
            for name, change in self.contestants.items()
            # The others are compared on one backend.
            if everywhere or name in DEFAULT
        }
        if everywhere and any(isinstance(layer, keras.layers.Add) for layer in base.layers):
            merged = networks.with_convex_add(base)
            both = networks.with_hidden_layers(merged, OURS["ParsevalTightFrame()"])
            models[BOTH] = networks.compiled(both, RATE, MOMENTUM)
        if everywhere and self.contestants is DENSE:
            models |= _deel_lip_model(base)
        return networks.compare_fits(models, self.batch, self.batches, self.rounds)


def _deel_lip_model(base):
    """deel-lip's spectral layers, where they run."""

    def build(model):
        return networks.compiled(networks.with_hidden_layers(model, _deel_lip), RATE, MOMENTUM)

    trial = networks.multilayer(1, 8, 8)
    runs = peers.runs("deel.lip", lambda: build(trial).fit(*networks.examples(trial, 8)))
    return {"deel-lip SpectralDense": build(base)} if runs else {}


DENSE, CONVOLUTIONS = {**OURS, **PENALTY, **KERAS_DENSE}, {**OURS, **PENALTY, **KERAS}
# Penalties take 15 times as long as a plain step here.
WIDE = {**OURS, **KERAS}
DEFAULT = ("plain", "ParsevalTightFrame()")


class Transformer(networks.TrainingStep):
    """The benchmark for a network with attention, which the converter constrains."""

    def run(self):
        plain = self.network()
        ours = kp.parseval(plain, verbose=0)
        models = {"plain": plain, "ParsevalTightFrame()": ours}
        for model in models.values():
            networks.compiled(model, RATE, MOMENTUM)
        return networks.compare_fits(models, self.batch, self.batches, self.rounds)


BENCHMARKS = {
    "constraint_mlp_1024": Constraint(
        *("an MLP 3 x 1024 (batch 128)", lambda: networks.multilayer(3, 1024), 128, 16, 7, DENSE)
    ),
    "constraint_mlp_2048": Constraint(
        *("the paper's MLP 4 x 2048 (batch 100)", lambda: networks.multilayer(4, 2048)),
        *(100, 12, 5, WIDE),
    ),
    "constraint_mlp_8192": Constraint(
        *("an MLP 2 x 8192 (batch 256)", lambda: networks.multilayer(2, 8192)),
        *(256, 8, 3, {name: OURS[name] for name in DEFAULT}),
    ),
    "constraint_convnet": Constraint(
        "a small convnet (batch 64)", networks.small_convnet, 64, 10, 15, CONVOLUTIONS
    ),
    "constraint_wrn_16_4": Constraint(
        "WRN-16-4 (batch 64)", networks.wide_resnet, 64, 3, 5, CONVOLUTIONS
    ),
    "constraint_transformer": Transformer(
        "a small transformer (batch 64)", networks.transformer, 64, 4, 9
    ),
}
