"""How replies become the next model: aggregators, steps, the pipeline, the named strategies.

    from thistle.strategies import RoFSL
    strategy = RoFSL(model=net, server_data=(x, y))  # a Flower Strategy, for any Flower app

Every registered class can be imported from here by its name; the list below is for type checkers and editors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thistle.strategies.pipeline import Pipeline as Pipeline
    from thistle.strategies.pipeline import Weighted as Weighted
    from thistle.strategies.registry import setting as setting
    from thistle.strategies.registry import strategy as strategy

    # generated: exports (make generate)

    from thistle.strategies.calfat import CalFAT as CalFAT
    from thistle.strategies.dsvd import DSVD as DSVD
    from thistle.strategies.evidence import Evidence as Evidence
    from thistle.strategies.rofsl import RoFSL as RoFSL
    from thistle.strategies.rules.bant import Bant as Bant
    from thistle.strategies.rules.bulyan import Bulyan as Bulyan
    from thistle.strategies.rules.caf import CAF as CAF
    from thistle.strategies.rules.centered_clipping import CenteredClipping as CenteredClipping
    from thistle.strategies.rules.dnc import DnC as DnC
    from thistle.strategies.rules.dp_fedavg import DPFedAvg as DPFedAvg
    from thistle.strategies.rules.fedavg import FedAvg as FedAvg
    from thistle.strategies.rules.fedcpa import FedCPA as FedCPA
    from thistle.strategies.rules.fedprox import FedProx as FedProx
    from thistle.strategies.rules.fedsvd import FedSVD as FedSVD
    from thistle.strategies.rules.flame import Flame as Flame
    from thistle.strategies.rules.fldetector import FLDetector as FLDetector
    from thistle.strategies.rules.fltrust import FLTrust as FLTrust
    from thistle.strategies.rules.foolsgold import FoolsGold as FoolsGold
    from thistle.strategies.rules.fsl import FSL as FSL
    from thistle.strategies.rules.krum import Krum as Krum
    from thistle.strategies.rules.lasa import LASA as LASA
    from thistle.strategies.rules.mda import MDA as MDA
    from thistle.strategies.rules.meamed import MeaMed as MeaMed
    from thistle.strategies.rules.median import Median as Median
    from thistle.strategies.rules.multi_krum import MultiKrum as MultiKrum
    from thistle.strategies.rules.multi_metrics import MultiMetrics as MultiMetrics
    from thistle.strategies.rules.norm_clipping import NormClipping as NormClipping
    from thistle.strategies.rules.rfa import GeometricMedian as GeometricMedian
    from thistle.strategies.rules.rfa import RFA as RFA
    from thistle.strategies.rules.rlr import RLR as RLR
    from thistle.strategies.rules.scaffold import Scaffold as Scaffold
    from thistle.strategies.rules.server_alone import ServerAlone as ServerAlone
    from thistle.strategies.rules.signguard import SignGuard as SignGuard
    from thistle.strategies.rules.trimmed_mean import TrimmedMean as TrimmedMean
    from thistle.strategies.rules.zeno import Zeno as Zeno

    # end of exports
else:
    _TOOLS = {"Pipeline": "pipeline", "Weighted": "pipeline", "setting": "registry", "strategy": "registry"}

    def __getattr__(name: str) -> Any:
        """A class of this name, or a tool for writing one; imported when it is first asked for."""
        from importlib import import_module

        if name in _TOOLS:
            return getattr(import_module(f"{__name__}.{_TOOLS[name]}"), name)
        if name[:1].isupper():
            found = import_module(f"{__name__}.registry").by_class_name()
            if name in found:
                return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        from thistle.strategies.registry import by_class_name

        return sorted({*globals(), *_TOOLS, *by_class_name()})
