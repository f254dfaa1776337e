"""Ask a trained model about images: own class, another client's class, or unknown.

`Model` answers; `conformal.py` gives its thresholds a guarantee from calibration images;
`model_file.py` writes and reads exported models, `onnx_file.py` writes them as ONNX graphs.

May import: errors, seeds, fields, caching, progress, data, clip, features, methods, federation,
config, scenario, runs.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.predict.calibrating import calibrate, halves, own_calibration, scored
    from focoop.predict.calibration import GLOBAL, Calibration, SiteCalibration
    from focoop.predict.conformal import BLOCKS, EXACT, Sketch, least_images, pooled
    from focoop.predict.export_folder import CARD, FILE, ONNX, check_sums
    from focoop.predict.facts import Client, Facts
    from focoop.predict.from_run import (
        CALIBRATION,
        COORDINATED,
        calibration_of,
        folded,
        model_of_run,
        sketches_of,
        words_of_prompts,
    )
    from focoop.predict.heat_map import overlay
    from focoop.predict.hub import push
    from focoop.predict.hub_model import HubModel
    from focoop.predict.images import Picture, dataset_of
    from focoop.predict.model import Model
    from focoop.predict.model_file import read_model
    from focoop.predict.onnx_file import OPSET, onnx_packages
    from focoop.predict.prediction import (
        COLUMNS,
        VERDICTS,
        ClassProbability,
        Prediction,
        Predictions,
        flat,
    )
    from focoop.predict.side import Side, evidence
    from focoop.predict.sketches import (
        SKETCHES,
        FederationSketches,
        SiteSketches,
        from_sketches,
        sketched,
    )

__all__ = [
    "BLOCKS",
    "CALIBRATION",
    "CARD",
    "COLUMNS",
    "COORDINATED",
    "EXACT",
    "FILE",
    "GLOBAL",
    "ONNX",
    "OPSET",
    "SKETCHES",
    "VERDICTS",
    "Calibration",
    "ClassProbability",
    "Client",
    "Facts",
    "FederationSketches",
    "HubModel",
    "Model",
    "Picture",
    "Prediction",
    "Predictions",
    "Side",
    "SiteCalibration",
    "SiteSketches",
    "Sketch",
    "calibrate",
    "calibration_of",
    "check_sums",
    "dataset_of",
    "evidence",
    "flat",
    "folded",
    "from_sketches",
    "halves",
    "least_images",
    "model_of_run",
    "onnx_packages",
    "overlay",
    "own_calibration",
    "pooled",
    "push",
    "read_model",
    "scored",
    "sketched",
    "sketches_of",
    "words_of_prompts",
]

__getattr__ = lazy_names(__name__, __file__)
