"""Layers and operations that have no Lipschitz constant, and what to do instead."""

import keras

from keras_parseval.analysis._rules import refuse


def _refuse_layers(reason, *names):
    """Some are missing in older versions of Keras."""
    layers = keras.layers
    refuse(reason, *(getattr(layers, name) for name in names if hasattr(layers, name)))


_PRODUCT = (
    "the product of tensors that both depend on the input is steeper the larger they are, without "
    "limit. Add, average or concatenate them instead; a squeeze-and-excitation block has to go"
)
_refuse_layers(_PRODUCT, "Multiply", "Dot")
refuse(_PRODUCT, "Glu", "Cross", "Outer", "Vdot", "Kron")
_refuse_layers(
    "attention multiplies values by a softmax of products of the input, and is steeper the larger "
    "the input is, without limit. Bound the part of the model without it",
    *("Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention"),
)
refuse(
    "attention is steeper the larger the input is, without limit. Bound the part of the model "
    "without it",
    "DotProductAttention",
)
_refuse_layers(
    "a recurrence applies its weights once for each step, and gates multiply what depends on the "
    "input, so that a bound would grow with every step. Use convolutions along the sequence, or "
    "bound the part of the model without it",
    *("RNN", "SimpleRNN", "LSTM", "GRU", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
    "Bidirectional",
)
_refuse_layers(
    "it looks up or counts values, so its output jumps. Bound a model that starts after it",
    *("Embedding", "ReversibleEmbedding", "CategoryEncoding", "Discretization", "Hashing"),
    *("HashedCrossing", "IntegerLookup", "StringLookup", "TextVectorization"),
)
_refuse_layers(
    "it acts at inference too, and stretches an image the more the less contrast it has, without "
    "limit. Do it before the model",
    *("AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization"),
)
_NORMALIZES = (
    "it divides by the norm of the input, which may be arbitrarily small. A LayerNormalization has "
    "a constant, if a large one, by its epsilon"
)
_refuse_layers(_NORMALIZES, "UnitNormalization")
refuse(_NORMALIZES, "Normalize")
refuse(
    "its output jumps. Bound a model without it",
    *("Round", "Floor", "Ceil", "Trunc", "Sign", "Signbit", "Mod", "Fmod", "FloorDivide"),
    *("Heaviside", "HardShrink", "Threshold", "Argmax", "Argmin", "Argsort", "Digitize", "OneHot"),
    *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "Isnan", "Isfinite"),
    *("LogicalAnd", "LogicalOr", "LogicalNot", "LogicalXor", "All", "Any", "CountNonzero"),
    *("SaturateCast", "RGBToHSV", "HSVToRGB"),
)
refuse(
    "its slope has no limit. Use a function whose slope has one, such as `tanh` or `softplus`",
    *("Square", "Power", "Exp", "Exp2", "Expm1", "Cosh", "Sinh", "Tan", "Prod", "Cumprod", "Var"),
    *("Sqrt", "Rsqrt", "Log", "Log2", "Log10", "Log1p", "Reciprocal", "Cbrt", "Arccos", "Arcsin"),
    *("Arccosh", "Arctanh", "Erfinv"),
)
