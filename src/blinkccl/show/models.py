"""Neural networks for training: parameter tensors in forward order, work per layer, and compute time on a GPU.

The four networks are those of Blink, MLSys 2020, §5.4, as defined in torchvision, since Blink trains with PyTorch.
This file lists their shapes, from which all counts follow. Times come from published throughputs, which ``models.toml``
lists with their sources; a number without a source is marked ``assumed`` there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

from blinkccl.errors import UnsupportedError, UsageError

#: Assumed fraction of a GPU's peak in a transformer's training: Megatron-LM reports 0.44 to 0.52 on A100s
#: (Narayanan et al. 2021, table 1).
PART_OF_PEAK = 0.45
#: Output side and output channels of the four stages of a ResNet, before a bottleneck's expansion.
_STAGES = ((56, 64), (28, 128), (14, 256), (7, 512))
#: A transformer block's matrices, in twelfths of its parameters: 12 h² = (3 + 1 + 4 + 4) h².
_BLOCK = (("qkv", 3), ("projection", 1), ("up", 4), ("down", 4))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter tensor; its gradient has as many elements."""

    name: str
    elements: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One step of the forward pass.

    ``forward_flops`` is the work per sample: two per multiply-add of convolutions and matrices. Normalisation,
    activation, pooling and bias count as zero, as in torchvision's figures. ``input_gradient`` is false for the layer
    that reads the image, whose gradient is not needed.
    """

    name: str
    tensors: tuple[Tensor, ...]
    forward_flops: int
    input_gradient: bool = True

    @property
    def backward_flops(self) -> int:
        """The forward work for the gradient of the parameters, and once more for that of the input."""
        return self.forward_flops * (2 if self.input_gradient else 1)


@dataclass(frozen=True)
class NeuralNetwork:
    """Layers in forward order; ``element_bytes`` is the size of a parameter, and of its gradient when it is sent."""

    name: str
    layers: tuple[Layer, ...]
    element_bytes: int = 4

    @property
    def forward_flops(self) -> int:
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def backward_flops(self) -> int:
        return sum(layer.backward_flops for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute time of one GPU for its minibatch, without communication."""

    forward_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("blinkccl.show") / "models.toml").read_text("utf-8"))


def _convolution(
    name: str, channels_in: int, channels: int, kernel: int, side: int, bias: bool = False, image: bool = False
) -> Layer:
    weight = kernel * kernel * channels_in * channels
    tensors = [Tensor(f"{name}.weight", weight)]
    if bias:
        tensors.append(Tensor(f"{name}.bias", channels))
    return Layer(name, tuple(tensors), 2 * weight * side * side, input_gradient=not image)


def _normalisation(name: str, channels: int) -> Layer:
    return Layer(name, (Tensor(f"{name}.weight", channels), Tensor(f"{name}.bias", channels)), 0)


def _linear(name: str, features_in: int, features: int) -> Layer:
    weight = features_in * features
    return Layer(name, (Tensor(f"{name}.weight", weight), Tensor(f"{name}.bias", features)), 2 * weight)


def _alexnet() -> NeuralNetwork:
    """Krizhevsky 2014 (arXiv 1404.5997), the one-tower AlexNet; 224 × 224 images, 1000 classes."""
    convolutions = ((3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13))
    matrices = ((256 * 6 * 6, 4096), (4096, 4096), (4096, 1000))
    layers = [
        _convolution(f"conv{i}", *shape, bias=True, image=i == 1) for i, shape in enumerate(convolutions, start=1)
    ]
    layers += [_linear(f"fc{i}", *shape) for i, shape in enumerate(matrices, start=6)]
    return NeuralNetwork("alexnet", tuple(layers))


def _vgg16() -> NeuralNetwork:
    """Simonyan, Zisserman 2015, configuration D, without batch normalisation."""
    layers: list[Layer] = []
    channels_in = 3
    for stage, (side, channels, depth) in enumerate(
        ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)), start=1
    ):
        for i in range(1, depth + 1):
            name = f"conv{stage}_{i}"
            layers.append(_convolution(name, channels_in, channels, 3, side, bias=True, image=not layers))
            channels_in = channels
    matrices = ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))
    layers += [_linear(f"fc{i}", *shape) for i, shape in enumerate(matrices, start=6)]
    return NeuralNetwork("vgg16", tuple(layers))


def _basic_block(name: str, channels_in: int, width: int, side_in: int, side: int) -> Iterator[Layer]:
    """Two 3 × 3 convolutions, the first with the stride. ``side_in``, the side of the input, is unused here."""
    yield _convolution(f"{name}.conv1", channels_in, width, 3, side)
    yield _normalisation(f"{name}.bn1", width)
    yield _convolution(f"{name}.conv2", width, width, 3, side)
    yield _normalisation(f"{name}.bn2", width)


def _bottleneck(name: str, channels_in: int, width: int, side_in: int, side: int) -> Iterator[Layer]:
    """Convolutions of 1 × 1, 3 × 3 and 1 × 1; the second has the stride, as in torchvision (in He et al. the first)."""
    yield _convolution(f"{name}.conv1", channels_in, width, 1, side_in)
    yield _normalisation(f"{name}.bn1", width)
    yield _convolution(f"{name}.conv2", width, width, 3, side)
    yield _normalisation(f"{name}.bn2", width)
    yield _convolution(f"{name}.conv3", width, 4 * width, 1, side)
    yield _normalisation(f"{name}.bn3", 4 * width)


def _resnet(
    name: str,
    depths: tuple[int, ...],
    block: Callable[[str, int, int, int, int], Iterator[Layer]],
    expansion: int,
) -> NeuralNetwork:
    """He et al. 2016, table 1: a 7 × 7 convolution, four stages of blocks, one matrix."""
    layers = [_convolution("conv1", 3, 64, 7, 112, image=True), _normalisation("bn1", 64)]
    channels_in, side_in = 64, 56
    for stage, ((side, width), depth) in enumerate(zip(_STAGES, depths, strict=True), start=1):
        for i in range(depth):
            prefix = f"layer{stage}.{i}"
            layers += block(prefix, channels_in, width, side_in, side)
            if channels_in != width * expansion:
                layers.append(_convolution(f"{prefix}.downsample", channels_in, width * expansion, 1, side))
                layers.append(_normalisation(f"{prefix}.downsample.bn", width * expansion))
            channels_in, side_in = width * expansion, side
    layers.append(_linear("fc", channels_in, 1000))
    return NeuralNetwork(name, tuple(layers))


def _densenet201() -> NeuralNetwork:
    """Huang et al. 2017, table 1, as in torchvision: blocks of 6, 12, 48 and 32 layers of 32 channels each."""
    layers = [_convolution("conv0", 3, 64, 7, 112, image=True), _normalisation("norm0", 64)]
    channels = 64
    for block, (side, depth) in enumerate(((56, 6), (28, 12), (14, 48), (7, 32)), start=1):
        for i in range(1, depth + 1):
            name = f"block{block}.{i}"
            layers.append(_normalisation(f"{name}.norm1", channels))
            layers.append(_convolution(f"{name}.conv1", channels, 128, 1, side))
            layers.append(_normalisation(f"{name}.norm2", 128))
            layers.append(_convolution(f"{name}.conv2", 128, 32, 3, side))
            channels += 32
        if block < 4:
            layers.append(_normalisation(f"transition{block}.norm", channels))
            layers.append(_convolution(f"transition{block}.conv", channels, channels // 2, 1, side))
            channels //= 2
    layers += [_normalisation("norm5", channels), _linear("classifier", channels, 1000)]
    return NeuralNetwork("densenet201", tuple(layers))


def _cosmoflow() -> NeuralNetwork:
    """CosmoFlow (arXiv 1808.04728) as built by default in the benchmark of that name (``models/cosmoflow.py``).

    Five convolutions of 2 × 2 × 2 over 128³ voxels of 4 values; each doubles the channels and is followed by pooling.
    """
    layers: list[Layer] = []
    channels_in, side = 4, 128
    for i in range(5):
        channels, name = 16 << i, f"conv{i}"
        weight = 2**3 * channels_in * channels
        tensors = (Tensor(f"{name}.weight", weight), Tensor(f"{name}.bias", channels))
        layers.append(Layer(name, tensors, 2 * weight * side**3, input_gradient=i > 0))
        channels_in, side = channels, side // 2
    matrices = ((channels_in * side**3, 128), (128, 64), (64, 4))
    layers += [_linear(f"fc{i}", *shape) for i, shape in enumerate(matrices, start=1)]
    return NeuralNetwork("cosmoflow", tuple(layers))


_NETWORKS: dict[str, Callable[[], NeuralNetwork]] = {
    "alexnet": _alexnet,
    "resnet18": lambda: _resnet("resnet18", (2, 2, 2, 2), _basic_block, 1),
    "resnet50": lambda: _resnet("resnet50", (3, 4, 6, 3), _bottleneck, 4),
    "vgg16": _vgg16,
}
#: The networks of Blink's Fig 5 and Fig 18, in its order; their times are known.
NETWORKS = tuple(_NETWORKS)
#: Other networks of the multi-path UCX article, with known shapes but without times.
_SHAPES: dict[str, Callable[[], NeuralNetwork]] = {
    "resnet152": lambda: _resnet("resnet152", (3, 8, 36, 3), _bottleneck, 4),
    "densenet201": _densenet201,
    "cosmoflow": _cosmoflow,
}


@cache
def network(name: str) -> NeuralNetwork:
    """The network called ``name``, with 4-byte parameters."""
    known = _NETWORKS | _SHAPES
    if name not in known:
        raise UnsupportedError(f"unknown network {name!r}; expected one of {', '.join(NETWORKS)}")
    return known[name]()


def gradient_bytes(model: NeuralNetwork) -> int:
    """Bytes of an AllReduce of all gradients."""
    return model.element_bytes * sum(tensor.elements for layer in model.layers for tensor in layer.tensors)


def transformer(parameters: int, layers: int = 80) -> NeuralNetwork:
    """A transformer of ``parameters`` parameters of 2 bytes in ``layers`` equal blocks; a sample is a token.

    Each block has four matrices with parameters as 3 : 1 : 4 : 4. The work is 2 FLOPs per parameter and token forward
    and 4 backward (Kaplan et al. 2020, §2.1), so a step takes 6 · parameters · tokens. As there, attention's own
    products, which grow with the sequence, are left out.
    """
    bounds = [parameters * i // layers for i in range(layers + 1)]
    blocks = tuple(_transformer_block(f"block{i}", bounds[i + 1] - bounds[i]) for i in range(layers))
    return NeuralNetwork(f"transformer-{parameters}", blocks, element_bytes=2)


def _transformer_block(name: str, parameters: int) -> Layer:
    tensors, done, twelfths = [], 0, 0
    for matrix, part in _BLOCK:
        twelfths += part
        upto = parameters * twelfths // 12
        tensors.append(Tensor(f"{name}.{matrix}", upto - done))
        done = upto
    return Layer(name, tuple(tensors), 2 * parameters)


def compute_time(name: str, gpu: str) -> Compute:
    """Forward and backward time of one minibatch of network ``name`` on one "p100" or "v100", in fp32.

    The minibatch is the original paper's. The total is images / throughput, at the minibatch of the published
    throughput; it is divided between the passes as measured on a V100. It includes the optimizer's time, as published
    throughputs do.
    """
    tables = _tables()
    if name not in NETWORKS:
        raise UnsupportedError(f"no times are known for network {name!r}; expected one of {', '.join(NETWORKS)}")
    passes = tables["passes"][name]
    total_s = tables["minibatch"][name]["images"] / tables["throughput"][gpu][name]["images_per_s"]
    forward_s = total_s * passes["forward_ms"] / (passes["forward_ms"] + passes["backward_ms"])
    return Compute(forward_s, total_s - forward_s)


def work_of(text: str, gpu: str) -> tuple[NeuralNetwork, Compute]:
    """The network named by ``text``, and the compute time of its step on one ``gpu``.

    ``resnet50`` and the like, in fp32 from published throughputs; ``resnet152`` and ``densenet201`` at ResNet-50's
    FLOPs per second; or ``transformer:7B:32:4096`` (parameters, blocks, tokens per GPU and step), at
    :data:`PART_OF_PEAK` of the GPU's dense arithmetic. UsageError for other text, UnsupportedError for a GPU without
    data.
    """
    tables = _tables()
    if text.partition(":")[0] == "transformer":
        parameters, layers, tokens = _transformer_of(text)
        if gpu not in tables["peak"]:
            raise UnsupportedError(f"no peak rate is known for {gpu} GPUs, only for {', '.join(tables['peak'])}")
        model = transformer(parameters, layers)
        return model, compute_at(model, tokens, PART_OF_PEAK * peak_flops_per_s(gpu))
    if text not in (*NETWORKS, *tables["scaled"]):
        known = ", ".join((*NETWORKS, *tables["scaled"]))
        raise UsageError(f"unknown network {text[:40]!r}; expected {known} or transformer:PARAMETERS:BLOCKS:TOKENS")
    if gpu not in tables["throughput"]:
        measured = " and ".join(tables["throughput"])
        raise UsageError(f"no published throughputs for {gpu} GPUs, only for {measured}")
    if text in NETWORKS:
        return network(text), compute_time(text, gpu)
    row, model = tables["scaled"][text], network(text)
    measured_model, measured_time = network(row["like"]), compute_time(row["like"], gpu)
    images = tables["minibatch"][row["like"]]["images"]
    speed = images * (measured_model.forward_flops + measured_model.backward_flops) / measured_time.total_s
    return model, compute_at(model, row["images"], speed)


def _transformer_of(text: str) -> tuple[int, int, int]:
    """Parameters, blocks and tokens."""
    match = re.fullmatch(r"transformer:([0-9]{1,6}(?:\.[0-9]{1,3})?)([MB]):([0-9]{1,4}):([0-9]{1,8})", text)
    parameters = 0 if match is None else int(Fraction(match[1]) * {"M": 10**6, "B": 10**9}[match[2]])
    if match is None or not (parameters and int(match[3]) and int(match[4])):
        raise UsageError(
            f"{text[:60]}: expected transformer:PARAMETERS:BLOCKS:TOKENS, like transformer:7B:32:4096 for 7 billion "
            "parameters in 32 blocks and 4096 tokens per GPU and step"
        )
    return parameters, int(match[3]), int(match[4])


def peak_flops_per_s(gpu: str, sparse: bool = False) -> float:
    """The data sheet's peak for bf16 matrices; ``sparse`` counts the zeros of 2:4 sparsity as work."""
    row = _tables()["peak"][gpu]
    return float((row["sparse_tflops"] if sparse else row["dense_tflops"]) * 1e12)


def compute_at(model: NeuralNetwork, samples: int, flops_per_s: float) -> Compute:
    """The time of ``samples`` at ``flops_per_s``, for networks without measurements, such as transformers."""
    return Compute(model.forward_flops * samples / flops_per_s, model.backward_flops * samples / flops_per_s)
