"""The networks against torchvision's published totals, and the tables of times against themselves."""

import tomllib
from importlib.resources import files
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import UnsupportedError
from blinkccl.show.models import (
    NETWORKS,
    Compute,
    Layer,
    compute_at,
    compute_time,
    gradient_bytes,
    network,
    peak_flops_per_s,
    transformer,
)

GPUS = ("p100", "v100")

#: torchvision's documentation of its weights: num_params, GFLOPS as printed (there, 1e9 multiply-adds), and the number
#: of tensors.
PUBLISHED = {
    "alexnet": (61_100_840, "0.71", 16),
    "resnet18": (11_689_512, "1.81", 62),
    "resnet50": (25_557_032, "4.09", 161),
    "vgg16": (138_357_544, "15.47", 32),
}


def parameters(*layers: Layer) -> int:
    return sum(tensor.elements for layer in layers for tensor in layer.tensors)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_work_are_torchvisions(name: str) -> None:
    model = network(name)
    names = {tensor.name for layer in model.layers for tensor in layer.tensors}
    assert (parameters(*model.layers), f"{model.forward_flops / 2e9:.2f}", len(names)) == PUBLISHED[name]
    assert len(names) == sum(len(layer.tensors) for layer in model.layers)


@pytest.mark.parametrize(
    ("name", "count", "work", "tensors"),
    [
        ("resnet152", 60_192_808, "11.51", 467),
        ("densenet201", 20_013_928, "4.29", 604),
        ("cosmoflow", 2_454_964, "3.09", 16),
    ],
)
def test_networks_with_known_shapes_but_no_times(name: str, count: int, work: str, tensors: int) -> None:
    """Against torchvision's totals; CosmoFlow's are computed by hand."""
    model = network(name)
    assert (parameters(*model.layers), f"{model.forward_flops / 2e9:.2f}") == (count, work)
    assert sum(len(layer.tensors) for layer in model.layers) == tensors
    assert gradient_bytes(model) == 4 * count
    with pytest.raises(UnsupportedError, match="no times are known for network"):
        compute_time(name, "v100")


@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_first_layer_needs_no_input_gradient(name: str) -> None:
    first, *others = network(name).layers
    assert first.backward_flops == first.forward_flops
    assert all(layer.backward_flops == 2 * layer.forward_flops for layer in others)


def test_most_of_vgg16_is_one_matrix_near_the_end() -> None:
    """Its gradients overlap well: 102 of 138 million parameters are ready after 1 % of the work."""
    model = network("vgg16")
    fc6 = next(layer for layer in model.layers if layer.name == "fc6")
    assert parameters(fc6) == 25_088 * 4096 + 4096
    matrices = [layer for layer in model.layers if layer.name.startswith("fc")]
    assert sum(layer.forward_flops for layer in matrices) < 0.01 * model.forward_flops


def test_unknown_network() -> None:
    with pytest.raises(UnsupportedError, match="unknown network 'lenet'; expected one of alexnet, resnet18"):
        network("lenet")


TABLES = tomllib.loads((files("blinkccl.show") / "models.toml").read_text("utf-8"))


def test_every_network_has_numbers_with_a_source() -> None:
    throughputs = {(gpu, name): row for gpu, rows in TABLES["throughput"].items() for name, row in rows.items()}
    assert set(throughputs) == set(product(GPUS, NETWORKS))
    assert set(TABLES["minibatch"]) == set(TABLES["passes"]) == set(NETWORKS)
    rows = [*throughputs.values(), *TABLES["minibatch"].values()]
    assert all(len(row["source"]) > 20 and row["kind"] in ("published", "assumed") for row in rows)
    assert [key for key, row in throughputs.items() if row["kind"] == "assumed"] == [("p100", "resnet18")]
    assert [name for name, row in TABLES["minibatch"].items() if row["kind"] == "assumed"] == ["resnet18", "resnet50"]


@pytest.mark.parametrize("name", NETWORKS)
def test_times_of_a_minibatch(name: str) -> None:
    """Images divided by throughput; measured backward passes take about twice as long as forward ones."""
    images = {"alexnet": 128, "resnet18": 32, "resnet50": 32, "vgg16": 64}[name]
    times = {gpu: compute_time(name, gpu) for gpu in GPUS}
    for gpu, compute in times.items():
        assert compute.total_s == pytest.approx(images / TABLES["throughput"][gpu][name]["images_per_s"], rel=1e-12)
        assert 1.9 < compute.backward_s / compute.forward_s < 2.5
    assert 1.0 < times["p100"].total_s / times["v100"].total_s < 2.0


@given(st.integers(2400, 10**12), st.integers(1, 200))
def test_a_transformer_has_exactly_its_parameters(parameters: int, layers: int) -> None:
    model = transformer(parameters, layers)
    blocks = [sum(tensor.elements for tensor in layer.tensors) for layer in model.layers]
    assert sum(blocks) == parameters
    assert len(blocks) == layers
    assert max(blocks) - min(blocks) <= 1
    assert all(len(layer.tensors) == 4 and min(tensor.elements for tensor in layer.tensors) for layer in model.layers)
    # 6 FLOPs per parameter and token.
    assert (model.forward_flops, model.backward_flops) == (2 * parameters, 4 * parameters)


def test_arithmetic_at_a_rate() -> None:
    assert compute_at(transformer(1200, 2), 10, 1e4) == Compute(2.4, 4.8)
    assert peak_flops_per_s("h200") == 989e12
    assert peak_flops_per_s("h200", sparse=True) == 1979e12
