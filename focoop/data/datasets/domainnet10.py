"""The ten classes of DomainNet that federated learning uses (FedBN's protocol), all images."""

from dataclasses import replace

from focoop.data.datasets import domainnet

CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)

DATASET = replace(
    domainnet.DATASET,
    title="DomainNet, 10 classes",
    classes=10,
    counts={},
    read=lambda base: domainnet.read(base, CLASSES),
)
