"""Scenes for detection: the test images of Intel's image classification challenge, at 150 px."""

from focoop.data.dataset import Dataset
from focoop.data.listing import flat

DATASET = Dataset(
    title="Intel scenes",
    folder="intel_scenes",
    others=("intel-image-classification",),
    marks=("seg_test",),
    layout="intel_scenes/seg_test/seg_test/{buildings,forest,glacier,mountain,sea,street}/*.jpg",
    classes=0,
    counts={"test": 3_000},
    licence="none stated; research",
    page="https://www.kaggle.com/datasets/puneet6060/intel-image-classification",
    read=lambda base: flat(base, "seg_test", "intel_scenes"),
    role="ood",
    by_hand="Kaggle gives it to those who log in (kaggle datasets download -d "
    "puneet6060/intel-image-classification)",
    ready="places_like",
)
