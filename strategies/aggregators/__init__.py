"""Aggregation rules as pure functions on an n x d block: row i is client i's update.

    krum(updates, f=2).vector

Updates are a tensor or a numpy array, float32 or float64; the answer is of the same kind and type (weights: float64).

Every rule returns an `Aggregate`: the new vector and the weight that each client had in it. None copies the block:
beside it a kernel holds n x n matrices, a few vectors and one chunk, or a sample, of columns.

A pre-step (`nearest_neighbour_mixing`, `bucketing`) is an n' x n matrix, handed to the rule that follows as `mixing`:
the rule then sees the n' mixed rows, and its weights are given back for the n clients. A Gram matrix that is there
already goes along as `products`:

    products = gram(updates)
    mixing = nearest_neighbour_mixing(updates, f, products=products)
    result = geometric_median(updates, mixing=mixing, products=products)
"""

from thistle.strategies.aggregators.block import Aggregate, combine
from thistle.strategies.aggregators.clipping import adaptive_clipping, centered_clipping, clip, clipped_mean
from thistle.strategies.aggregators.clusters import flame, signguard
from thistle.strategies.aggregators.coordinates import (
    coordinate_median,
    meamed,
    robust_learning_rate,
    trimmed_mean,
)
from thistle.strategies.aggregators.covariance import caf
from thistle.strategies.aggregators.critical import critical_weights
from thistle.strategies.aggregators.diameter import mda
from thistle.strategies.aggregators.gram import gram, inner_products, norms, squared_distances
from thistle.strategies.aggregators.layers import Layer, lasa
from thistle.strategies.aggregators.means import geometric_median, mean
from thistle.strategies.aggregators.metrics import multi_metrics
from thistle.strategies.aggregators.mixing import bucketing, nearest_neighbour_mixing
from thistle.strategies.aggregators.numpy_input import NumpyAggregate
from thistle.strategies.aggregators.selection import bulyan, krum, multi_krum
from thistle.strategies.aggregators.similarity import adapted_alpha, mean_similarities, similarities, similarity_weights
from thistle.strategies.aggregators.spectra import Matrix, Spectra, decompose, truncate
from thistle.strategies.aggregators.spectral import dnc
from thistle.strategies.aggregators.spread import sample_variance
from thistle.strategies.aggregators.trust import fltrust, foolsgold
from thistle.strategies.aggregators.weighted import cap_weights

__all__ = [
    "Aggregate",
    "Layer",
    "Matrix",
    "NumpyAggregate",
    "Spectra",
    "adapted_alpha",
    "adaptive_clipping",
    "bucketing",
    "bulyan",
    "caf",
    "cap_weights",
    "centered_clipping",
    "clip",
    "clipped_mean",
    "combine",
    "coordinate_median",
    "critical_weights",
    "decompose",
    "dnc",
    "flame",
    "fltrust",
    "foolsgold",
    "geometric_median",
    "gram",
    "inner_products",
    "krum",
    "lasa",
    "mda",
    "meamed",
    "mean",
    "mean_similarities",
    "multi_krum",
    "multi_metrics",
    "nearest_neighbour_mixing",
    "norms",
    "robust_learning_rate",
    "sample_variance",
    "signguard",
    "similarities",
    "similarity_weights",
    "squared_distances",
    "trimmed_mean",
    "truncate",
]
