"""What tests of towers share."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def seeded_for_a_module() -> None:
    """Open_clip and timm draw weights from torch's own generator: no test may depend on another."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def seeded_for_a_test() -> None:
    """The same for what a test draws itself."""
    torch.manual_seed(0)
