"""The networks against torchvision's published totals, and the tables of times against themselves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import UnsupportedError
from blinkccl.paper.models import (
    NETWORKS,
    Compute,
    compute_at,
    compute_time,
    minibatch,
    network,
    peak_flops_per_s,
    throughputs,
    transformer,
)

GPUS = ("p100", "v100")

#: torchvision's documentation of its weights: num_params, and GFLOPS, which there are 1e9 multiply-adds, as printed.
PUBLISHED = {
    "alexnet": (61_100_840, "0.71"),
    "resnet18": (11_689_512, "1.81"),
    "resnet50": (25_557_032, "4.09"),
    "vgg16": (138_357_544, "15.47"),
}


def test_all_published_networks_are_there() -> None:
    assert sorted(PUBLISHED) == sorted(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_torchvisions(name: str) -> None:
    model = network(name)
    assert model.parameters == PUBLISHED[name][0]
    assert sum(tensor.elements for tensor in model.tensors) == model.parameters
    assert model.gradient_bytes == 4 * model.parameters


@pytest.mark.parametrize("name", NETWORKS)
def test_work_is_torchvisions(name: str) -> None:
    assert f"{network(name).forward_flops / 2e9:.2f}" == PUBLISHED[name][1]


@pytest.mark.parametrize(("name", "tensors"), [("alexnet", 16), ("resnet18", 62), ("resnet50", 161), ("vgg16", 32)])
def test_tensors_are_as_many_and_have_names_of_their_own(name: str, tensors: int) -> None:
    names = [tensor.name for tensor in network(name).tensors]
    assert len(names) == len(set(names)) == tensors


@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_first_layer_needs_no_input_gradient(name: str) -> None:
    first, *others = network(name).layers
    assert first.backward_flops == first.forward_flops
    assert all(layer.backward_flops == 2 * layer.forward_flops for layer in others)


def test_most_of_vgg16_is_one_matrix_near_the_end() -> None:
    """Why its gradients overlap so well: 102 of 138 million parameters are ready when 1 % of the work is done."""
    model = network("vgg16")
    fc6 = next(layer for layer in model.layers if layer.name == "fc6")
    assert fc6.parameters == 25_088 * 4096 + 4096
    matrices = [layer for layer in model.layers if layer.name.startswith("fc")]
    assert sum(layer.forward_flops for layer in matrices) < 0.01 * model.forward_flops


def test_resnets_end_with_the_same_matrix_but_for_its_width() -> None:
    assert network("resnet18").layers[-1].parameters == 512 * 1000 + 1000
    assert network("resnet50").layers[-1].parameters == 2048 * 1000 + 1000


def test_unknown_network() -> None:
    with pytest.raises(UnsupportedError, match="no network 'lenet' is known; expected one of alexnet, resnet18"):
        network("lenet")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("gpu", GPUS)
def test_every_network_has_a_throughput_with_a_source(name: str, gpu: str) -> None:
    for row in throughputs(name, gpu):
        assert (row.network, row.gpu) == (name, gpu)
        assert row.images_per_s > 0
        assert row.minibatch >= 1
        assert len(row.source) > 20


def test_what_is_assumed_is_only_this() -> None:
    rows = [row for name in NETWORKS for gpu in GPUS for row in throughputs(name, gpu)]
    assert [(row.network, row.gpu) for row in rows if row.kind == "assumed"] == [("resnet18", "p100")]
    assert [name for name in NETWORKS if minibatch(name).kind == "assumed"] == ["resnet18", "resnet50"]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_v100_is_one_to_two_times_as_fast_as_a_p100(name: str) -> None:
    ratio = compute_time(name, "p100").total_s / compute_time(name, "v100").total_s
    assert 1.0 < ratio < 2.0


def test_minibatches_of_the_original_papers() -> None:
    assert {name: minibatch(name).images for name in NETWORKS} == {
        "alexnet": 128,
        "resnet18": 32,
        "resnet50": 32,
        "vgg16": 64,
    }


@given(st.sampled_from(NETWORKS), st.sampled_from(GPUS), st.integers(1, 4096))
def test_time_is_images_over_throughput(name: str, gpu: str, images: int) -> None:
    compute = compute_time(name, gpu, images)
    assert math.isclose(compute.total_s * throughputs(name, gpu)[0].images_per_s, images, rel_tol=1e-12)
    # Measured backward passes take about twice as long as the forward ones.
    assert 1.9 < compute.backward_s / compute.forward_s < 2.5


def test_another_throughput_can_be_taken() -> None:
    slowest = min(throughputs("resnet50", "v100"), key=lambda row: row.images_per_s)
    assert compute_time("resnet50", "v100", throughput=slowest).total_s == pytest.approx(32 / slowest.images_per_s)
    assert slowest.source in compute_time("resnet50", "v100", throughput=slowest).source


def test_what_no_table_has_is_said() -> None:
    with pytest.raises(UnsupportedError, match="no training throughput is listed for 'vgg16' on 'k80'; listed are"):
        compute_time("vgg16", "k80")
    with pytest.raises(UnsupportedError, match="no minibatch is listed for 'lenet'"):
        compute_time("lenet", "v100")
    with pytest.raises(UnsupportedError, match="no training throughput is listed for 'lenet'"):
        compute_time("lenet", "v100", 32)
    with pytest.raises(UnsupportedError, match="how 'lenet' divides"):
        compute_time("lenet", "v100", 32, throughputs("vgg16", "v100")[0])
    with pytest.raises(UnsupportedError, match="at least one image, got 0"):
        compute_time("vgg16", "v100", 0)
    with pytest.raises(UnsupportedError, match="no peak rate is listed for 'v100'"):
        peak_flops_per_s("v100")


@given(st.integers(12, 10**12), st.integers(1, 200), st.sampled_from((1, 2, 4)))
def test_a_transformer_has_exactly_the_parameters_asked_for(parameters: int, layers: int, element_bytes: int) -> None:
    if parameters < 12 * layers:
        with pytest.raises(UnsupportedError, match="12 parameters in each"):
            transformer(parameters, layers, element_bytes)
        return
    model = transformer(parameters, layers, element_bytes)
    assert model.parameters == parameters
    assert model.gradient_bytes == element_bytes * parameters
    assert len(model.layers) == layers
    assert len(model.tensors) == 4 * layers
    assert all(tensor.elements >= 1 for tensor in model.tensors)
    blocks = [layer.parameters for layer in model.layers]
    assert max(blocks) - min(blocks) <= 1
    # 6 FLOPs per parameter and token.
    assert model.forward_flops == 2 * parameters
    assert model.backward_flops == 4 * parameters


def test_arithmetic_at_a_rate() -> None:
    model = transformer(1200, 2)
    assert compute_at(model, 10, 1e4) == Compute(2.4, 4.8, "arithmetic at 1e+04 FLOPs/s")
    with pytest.raises(UnsupportedError, match="above zero, got 0 samples"):
        compute_at(model, 0, 1e4)
    with pytest.raises(UnsupportedError, match="at inf FLOPs/s"):
        compute_at(model, 1, math.inf)


def test_sparsity_doubles_what_the_data_sheet_prints() -> None:
    assert peak_flops_per_s("h200") == 989e12
    assert peak_flops_per_s("h200", sparse=True) == 1979e12
