"""Starts the replicas on a Ray cluster with the command's options, and ends them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from longgraft.config.settings import Pair, Settings
from longgraft.serve.http_server import GRACE_SECONDS
from longgraft.serve.options import Replicas, Serving
from longgraft.serve.replicas.ray_cluster import NodeShare, absolute, connected, nodes_of

SPARE = 8  # requests that a replica accepts beyond its queue, which it refuses; those without decoding pass
CHECKED = 5.0  # seconds between two checks of a replica
QUIET = {"log_level": "WARNING", "enable_access_log": False}


@dataclass(frozen=True)
class Opened:
    """The options with which a replica opens its session and its application.

    Attributes:
        pair: The model and the drafter.
        settings: The settings of the session.
        options: The options of the server.
    """

    pair: Pair
    settings: Settings
    options: Serving

    def everywhere(self) -> Opened:
        """Returns these options with absolute paths, and with the one GPU that a replica sees."""
        settings = self.settings
        pair = replace(self.pair, model=absolute(self.pair.model), drafter=absolute(self.pair.drafter))
        paths = {name: absolute(path) for name, path in settings.given.items()}
        settings = replace(
            settings,
            device=settings.device and settings.device.split(":")[0],
            calibration=absolute(settings.calibration),
            costs=absolute(settings.costs),
            prefix=tuple(map(absolute, settings.prefix)),
            given=paths,
        )
        return replace(self, pair=pair, settings=settings)


@contextmanager
def replicas(wanted: Replicas, opened: Opened, application: str) -> Iterator[tuple[Any, str]]:
    """Yields (handle, the model's name) once the replicas are ready.

    Args:
        application: Name of the application in the cluster. One that has it is replaced.

    Raises:
        ValueError: The cluster has no room, or a replica cannot open the model.
    """
    assert wanted.ray is not None
    with connected(wanted.ray) as ray:
        from ray import serve

        share, count = NodeShare.fair(nodes_of(ray), wanted.most, opened.settings.device, "replicas")
        scale: dict[str, Any] = {"num_replicas": count}
        if wanted.autoscale is not None:
            scale = {
                "autoscaling_config": {
                    "min_replicas": wanted.fewest,
                    "max_replicas": count,
                    "target_ongoing_requests": opened.options.max_running,
                }
            }
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled", logging_config=QUIET)
        try:
            try:
                handle = serve.run(bound(opened, share, scale), name=application, route_prefix=None)
            except RuntimeError as error:
                deployments = serve.status().applications[application].deployments.values()
                messages = "\n".join(deployment.message for deployment in deployments)
                raise ValueError(reason(messages or str(error))) from error
            yield handle.options(stream=True), handle.name.remote().result()
        finally:
            serve.delete(application)


def reason(message: str) -> str:
    """Returns the exception at the end of the traceback in Ray Serve's message."""
    end = re.split(r"\n(?=[\w.]+: )", message)[-1].strip()
    return (
        f"A replica could not start: {end}\nModels and files given as paths must be there on every node "
        "of the Ray cluster."
    )


def bound(opened: Opened, share: NodeShare, scale: Mapping[str, Any]) -> Any:
    """Returns the application for Ray Serve.

    Args:
        scale: The options that set the number of replicas.
    """
    from ray import serve

    from longgraft.serve.replicas.replica import Replica

    options = opened.options
    there = opened.everywhere()
    deployment: Any = serve.deployment(Replica)
    return deployment.options(
        ray_actor_options={"num_cpus": share.cpus, "num_gpus": share.gpus},
        max_ongoing_requests=options.max_running + options.queue + SPARE,
        max_queued_requests=options.queue + SPARE,
        graceful_shutdown_timeout_s=options.drain_timeout + GRACE_SECONDS,
        health_check_period_s=CHECKED,
        max_constructor_retry_count=1,
        logging_config=QUIET,
        request_router_config={"request_router_class": "longgraft.serve.replicas.replica.PrefixRouter"},
        **scale,
    ).bind(there.pair, there.settings, options, max(1, share.cpus))
