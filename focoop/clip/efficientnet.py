"""EfficientNet-Lite0's convolutional trunk with batch norms folded into the convolutions.

float32 sums depend on the order in which they are added. On a CPU, the convolutions here that add
up many numbers add them in the order of onnxruntime's kernels (colour by colour in the stem,
`PIECE` channels at a time in 1 x 1 convolutions, a residual first and the bias last), so that the
trunk and its ONNX graph round alike. Short sums are also closer to the exact ones. Graphs that are
exported hold plain convolutions.
"""

import torch
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
PIECE = 128  # channels that onnxruntime's 1 x 1 convolutions add up before they go on


def added_by_library(input: Tensor) -> bool:
    """Say whether a convolution is left to its library, which adds in an order of its own.

    Args:
        input: What is convolved.

    Returns:
        True on a GPU and in a graph that is being exported.
    """
    return input.device.type != "cpu" or torch.compiler.is_exporting()


class SameConv(nn.Conv2d):
    """Convolution with TensorFlow's `same` padding: an odd pixel goes to the bottom and right."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(self, input: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, ceil(H / stride), ceil(W / stride))."""
        left, right, top, bottom = edges = self.edges(input)
        if left == right == top == bottom:
            return F.conv2d(input, self.weight, self.bias, self.stride, left, groups=self.groups)
        padded = F.pad(input, edges)
        return F.conv2d(padded, self.weight, self.bias, self.stride, groups=self.groups)

    def edges(self, input: Tensor) -> tuple[int, int, int, int]:
        """Return how many zeros are put around a map.

        Args:
            input: (N, inputs, H, W).

        Returns:
            Columns on the left and on the right, rows at the top and at the bottom.
        """
        kernel, stride = self.kernel_size[0], self.stride[0]
        down, right = (
            max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in input.shape[2:]
        )
        return right // 2, right - right // 2, down // 2, down - down // 2


class Stem(SameConv):
    """The first convolution: adds up the pixels of each colour, then the colours and the bias."""

    def __init__(self) -> None:
        super().__init__(3, STEM, kernel=3, stride=2)

    def forward(self, input: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 32, ceil(H / 2), ceil(W / 2))."""
        if added_by_library(input):
            return super().forward(input)
        padded = F.pad(input, self.edges(input))
        colours = torch.eye(3, dtype=self.weight.dtype)[:, None, :, None, None]
        # Zero weights for the other colours: kernels for one input channel round otherwise.
        red, green, blue = self.weight * colours
        out = F.conv2d(padded, red, stride=self.stride)
        for weight in (green, blue):
            out += F.conv2d(padded, weight, stride=self.stride)
        assert self.bias is not None
        out += self.bias[:, None, None]
        return out


class PointConv(nn.Conv2d):
    """A 1 x 1 convolution that adds up `PIECE` channels at a time."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, kernel_size=1)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Convolve, and add to another map.

        Args:
            input: (N, inputs, H, W).
            residual: What the result is added to, (N, outputs, H, W); None: nothing.

        Returns:
            (N, outputs, H, W).
        """
        one_piece = self.in_channels <= PIECE and residual is None
        if one_piece or added_by_library(input):
            out = super().forward(input)
            return out if residual is None else residual + out
        pixels = torch.split(_rows(input), PIECE, dim=1)
        weights = [weight.t() for weight in torch.split(self.weight.flatten(1), PIECE, dim=1)]
        if residual is None:
            total = pixels[0] @ weights[0]
        else:
            total = torch.addmm(_rows(residual), pixels[0], weights[0])
        for piece, weight in zip(pixels[1:], weights[1:], strict=True):
            total.addmm_(piece, weight)
        assert self.bias is not None
        total += self.bias
        count, _, height, width = input.shape
        return total.view(count, height, width, -1).permute(0, 3, 1, 2)


def _rows(features: Tensor) -> Tensor:
    """(N, C, H, W) -> (N * H * W, C), without a copy where channels are last in memory."""
    return features.permute(0, 2, 3, 1).flatten(0, 2)


class InvertedResidual(nn.Module):
    """Expand (1 x 1), filter each channel (k x k), project (1 x 1), and add the input back."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = PointConv(inputs, hidden) if expansion > 1 else None
        self.depthwise = SameConv(hidden, hidden, kernel, stride, groups=hidden)
        self.project = PointConv(hidden, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H', W')."""
        hidden = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        filtered = F.relu6(self.depthwise(hidden), inplace=True)
        out: Tensor = self.project(filtered, x if self.residual else None)
        return out


class EfficientNetLite0(nn.Module):
    """Images -> the last feature map, 1/32 of their size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Stem()
        blocks: list[nn.Module] = []
        inputs = STEM
        for kernel, stride, expansion, outputs, count in STAGES:
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(InvertedResidual(inputs, outputs, kernel, step, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = PointConv(inputs, HEAD)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 1280, H/32, W/32), each value in 0..6."""
        out: Tensor = self.head(self.blocks(F.relu6(self.stem(images), inplace=True)))
        return F.relu6(out, inplace=True)
