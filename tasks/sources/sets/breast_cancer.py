"""scikit-learn's breast cancer data, a table: no download, trained in seconds."""

from __future__ import annotations

from thistle.experiments.extras import require
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.registry import SOURCES, Found, Wanted
from thistle.tasks.sources.table import put_tables, split
from thistle.tasks.tables.read import Table

SHARE = 0.3


@SOURCES.add(
    "breast-cancer",
    "scikit-learn's table of 30 measurements of tumours, embedded: 398 to train, 171 to test",
    "Street et al. 1993",
)
def breast_cancer(wanted: Wanted) -> Found:
    """It is part of scikit-learn, and never changes."""
    return Found(["breast-cancer", wanted.scheme], lambda work: _read(wanted, work), "breast-cancer")


def _read(wanted: Wanted, work: Workspace) -> tuple[str, ...]:
    require("sklearn")
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = {name: [repr(float(x)) for x in found.data[:, i]] for i, name in enumerate(map(str, found.feature_names))}
    whole = Table("breast-cancer", columns, [str(found.target_names[label]) for label in found.target])
    plain = Wanted(wanted.name, scheme=wanted.scheme)
    return put_tables(split(whole, SHARE), work, plain)
