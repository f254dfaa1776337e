"""EfficientNet-Lite0's convolutional trunk with batch norms folded into the convolutions."""

import torch.nn.functional as F
from torch import Tensor, nn

# Per stage: kernel, stride of its first block, expansion, output channels, number of blocks.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM, HEAD = 32, 1280


class SameConv(nn.Conv2d):
    """Convolution with TensorFlow's `same` padding: an odd pixel goes to the bottom and right."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(self, input: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, ceil(H / stride), ceil(W / stride))."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        down, right = (
            max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in input.shape[2:]
        )
        if down == right and down % 2 == 0:
            return F.conv2d(input, self.weight, self.bias, stride, down // 2, groups=self.groups)
        edges = (right // 2, right - right // 2, down // 2, down - down // 2)
        return F.conv2d(F.pad(input, edges), self.weight, self.bias, stride, groups=self.groups)


class InvertedResidual(nn.Module):
    """Expand (1 x 1), filter each channel (k x k), project (1 x 1), and add the input back."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = SameConv(inputs, hidden) if expansion > 1 else None
        self.depthwise = SameConv(hidden, hidden, kernel, stride, groups=hidden)
        self.project = SameConv(hidden, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H', W')."""
        hidden = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out: Tensor = self.project(F.relu6(self.depthwise(hidden), inplace=True))
        return x + out if self.residual else out


class EfficientNetLite0(nn.Module):
    """Images -> the last feature map, 1/32 of their size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, STEM, kernel=3, stride=2)
        blocks: list[nn.Module] = []
        inputs = STEM
        for kernel, stride, expansion, outputs, count in STAGES:
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(InvertedResidual(inputs, outputs, kernel, step, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConv(inputs, HEAD)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 1280, H/32, W/32), each value in 0..6."""
        out: Tensor = self.head(self.blocks(F.relu6(self.stem(images), inplace=True)))
        return F.relu6(out, inplace=True)
