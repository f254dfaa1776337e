"""A configuration made concrete: clients with their images, class names and negative words.

May import: errors, seeds, caching, processor, assets, data, clip, features, methods,
federation, config.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.scenario.assignment import client_split, make_split, remarks
    from focoop.scenario.assignment_of_tests import tested_split, training_is_gone
    from focoop.scenario.data_needed import datasets_of, leave_out_absent, require_data
    from focoop.scenario.held_out import TooManyValidationImages
    from focoop.scenario.scenario import Divide, Scenario, build_scenario
    from focoop.scenario.schedule import (
        TOGETHER,
        check_parties,
        client_privacy,
        schedule_of,
        server_screen,
    )
    from focoop.scenario.split import Split
    from focoop.scenario.task import make_task, mine_negatives, open_backbone, task_words
    from focoop.scenario.unused_images import left_out

__all__ = [
    "TOGETHER",
    "Divide",
    "Scenario",
    "Split",
    "TooManyValidationImages",
    "build_scenario",
    "check_parties",
    "client_privacy",
    "client_split",
    "datasets_of",
    "leave_out_absent",
    "left_out",
    "make_split",
    "make_task",
    "mine_negatives",
    "open_backbone",
    "remarks",
    "require_data",
    "schedule_of",
    "server_screen",
    "task_words",
    "tested_split",
    "training_is_gone",
]

__getattr__ = lazy_names(__name__, __file__)
