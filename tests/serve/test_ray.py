"""A Ray cluster: its nodes are shared out fairly, and an unusable address is refused."""

from __future__ import annotations

import sys

import pytest

from longgraft.serve.replicas.ray_cluster import NodeShare, connected

HEAD, SMALL, GPUS = {"CPU": 16.0}, {"CPU": 4.0}, {"CPU": 32.0, "GPU": 4.0}


@pytest.mark.parametrize(
    "nodes, workers, device, share, count",
    [
        ([SMALL, SMALL], None, None, NodeShare(0, 4), 2),
        ([SMALL, SMALL], 3, None, NodeShare(0, 2), 3),
        ([HEAD, SMALL], None, None, NodeShare(0, 8), 2),
        ([{"CPU": 0.0}, SMALL], None, None, NodeShare(0, 4), 1),
        ([HEAD, GPUS, GPUS], None, None, NodeShare(1, 8), 8),
        ([HEAD, GPUS], 2, "cuda", NodeShare(1, 8), 2),
        ([HEAD, GPUS], None, "cpu", NodeShare(0, 16), 2),
    ],
)
def test_workers_share_a_cluster_fairly(nodes, workers, device, share, count):
    assert NodeShare.fair(nodes, workers, device) == (share, count) and share.fits(nodes) >= count


@pytest.mark.parametrize(
    "nodes, workers, device, message",
    [
        ([GPUS], 5, None, "5 workers were asked for .* room for 4"),
        ([SMALL], 5, None, "room for 4"),
        ([SMALL], 1, "cuda", "no node of the Ray cluster has a GPU"),
        ([], None, None, "room for 0"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused_with_the_number_of_workers_that_fit(nodes, workers, device, message):
    with pytest.raises(ValueError, match=message):
        NodeShare.fair(nodes, workers, device)


@pytest.mark.parametrize(
    "address, message",
    [("ray://127.0.0.1:10001", "Ray Client"), ("nonsense", "ray start --head"), ("127.0.0.1:x", "cannot be reached")],
)
def test_an_unusable_ray_address_is_refused_with_the_reason(address, message):
    with pytest.raises(ValueError, match=message), connected(address):
        pass


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"longgraft\[ray\]"), connected("local"):
        pass
