"""An ordinary PyTorch program that knows nothing of Weir: a model computes batch after batch, on streams and in a CUDA graph.

usage: torch_loop.py resnet|bert
Prints `output` with a hash of all results, and `rate` with batches a second.
"""

import hashlib
import sys
import time

import torch
from torch import nn

torch.manual_seed(7)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
torch.backends.cuda.matmul.allow_tf32 = False


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, into, inner, stride):
        super().__init__()
        out = inner * 4
        self.way = nn.Sequential(
            nn.Conv2d(into, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Identity()
        if stride != 1 or into != out:
            self.short = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, images):
        return torch.relu(self.way(images) + self.short(images))


def resnet():
    """ResNet-50."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, inner, stride if block == 0 else 1))
            channels = inner * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)), (8, 3, 224, 224)


def bert():
    """The encoder of BERT base, on embedded words."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), (8, 128, 768)


def main():
    model, shape = {"resnet": resnet, "bert": bert}[sys.argv[1]]()
    model = model.cuda().eval()
    digest = hashlib.sha256()
    batches = [torch.randn(shape).cuda() for _ in range(4)]
    with torch.no_grad():
        for batch in batches:
            digest.update(model(batch).cpu().numpy().tobytes())
        graph, static = torch.cuda.CUDAGraph(), batches[0].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            result = model(static)
        for batch in batches:
            static.copy_(batch)
            graph.replay()
            digest.update(result.cpu().numpy().tobytes())
        torch.cuda.synchronize()
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < 5:
            model(batches[count % 4])
            count += 1
        torch.cuda.synchronize()
    print("output", digest.hexdigest())
    print("rate", round(count / (time.monotonic() - begin), 2))


if __name__ == "__main__":
    main()
