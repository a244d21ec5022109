"""Layers that keep a network's Lipschitz constant where it is."""

from keras_parseval.layers._batch_centering import BatchCentering
from keras_parseval.layers._convex_add import ConvexAdd, convex_add
from keras_parseval.layers._maxmin import MaxMin

__all__ = ["BatchCentering", "ConvexAdd", "MaxMin", "convex_add"]
