"""Federated prompt learning of vision-language models that detects what it does not know.

    import focoop

    run = focoop.run("demo", {"method.name": "focoop_plus"}, out="runs/x")
    run.summary["accuracy_own"]
    run = focoop.open_run("runs/x")
    run.scores("dtd_32px", client=3)
    focoop.load_model("runs/x", client=3).predict(["cat.jpg"])
    table = focoop.compare("demo", methods=["focoop", "promptfl"], seeds=3)

Nothing here prints or exits; what goes wrong is a `focoop.FocoopError`. Importing focoop is quick:
a name is loaded when it is first used. Names listed in `__all__` are the public API; what they
promise between versions is said in docs/reference/python.md.
"""

from focoop.lazy import lazy_names

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than all of this
if TYPE_CHECKING:
    from focoop.api import (
        Reproduction,
        Run,
        Table,
        Tuning,
        calibrate,
        check_method,
        compare,
        encode,
        export,
        load_features,
        load_model,
        open_run,
        partition,
        register,
        reproduce,
        run,
        tune,
        write_report,
    )
    from focoop.clip import Backbone, Names, load_backbone
    from focoop.config import RunConfig
    from focoop.data import Dataset, ImageSet, Listing
    from focoop.errors import (
        BackboneError,
        ConfigError,
        DataError,
        FederationError,
        FocoopError,
        MethodError,
        MissingExtra,
        RunError,
    )
    from focoop.features import FeatureSet
    from focoop.federation import Evaluation, RuleCheck
    from focoop.fields import setting
    from focoop.functional import metrics, scores, transport
    from focoop.methods import (
        AnswerConfig,
        Answering,
        Batch,
        ClientUpdate,
        Logits,
        Method,
        Params,
        Prompt,
        Server,
        State,
        Task,
        Text,
        class_weighted_mean,
        cosines,
        federated_average,
        first_context,
        weighted_mean,
    )
    from focoop.predict import Calibration, ClassProbability, Model, Prediction, Predictions
    from focoop.tracking import RoundEvent, Tracker

__version__ = "0.1.0"

__all__ = [
    "AnswerConfig",
    "Answering",
    "Backbone",
    "BackboneError",
    "Batch",
    "Calibration",
    "ClassProbability",
    "ClientUpdate",
    "ConfigError",
    "DataError",
    "Dataset",
    "Evaluation",
    "FeatureSet",
    "FederationError",
    "FocoopError",
    "ImageSet",
    "Listing",
    "Logits",
    "Method",
    "MethodError",
    "MissingExtra",
    "Model",
    "Names",
    "Params",
    "Prediction",
    "Predictions",
    "Prompt",
    "Reproduction",
    "RoundEvent",
    "RuleCheck",
    "Run",
    "RunConfig",
    "RunError",
    "Server",
    "State",
    "Table",
    "Task",
    "Text",
    "Tracker",
    "Tuning",
    "__version__",
    "calibrate",
    "check_method",
    "class_weighted_mean",
    "compare",
    "cosines",
    "encode",
    "export",
    "federated_average",
    "first_context",
    "load_backbone",
    "load_features",
    "load_model",
    "metrics",
    "open_run",
    "partition",
    "register",
    "reproduce",
    "run",
    "scores",
    "setting",
    "transport",
    "tune",
    "weighted_mean",
    "write_report",
]

_load = lazy_names(__name__, __file__)


def __getattr__(name: str) -> object:
    return _load(name)


def __dir__() -> list[str]:
    return sorted(__all__)
