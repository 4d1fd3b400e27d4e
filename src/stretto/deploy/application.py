"""A model as an application of Ray Serve; what a YAML file names:

applications:
  - name: smollm2
    route_prefix: /
    import_path: stretto.deploy.application:build
    args: {model: smollm2, replicas: 2, threads: 1}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stretto.deploy import require_ray
from stretto.deploy.scaling import Pressure
from stretto.deploy.settings import DEPLOYMENT, DeploySettings

if TYPE_CHECKING:
    from ray.serve import Application

HEALTH_SECONDS = 5.0  # between two looks at a replica
STATS_SECONDS = 1.0  # between two reports to the autoscaler
WINDOW_SECONDS = 5.0  # that reports are averaged over


def build(args: Mapping[str, Any]) -> Application:
    """The application of a model; `args` are the fields of `DeploySettings`."""
    require_ray()
    from ray import serve

    from stretto.deploy import router
    from stretto.deploy.replica import Replica

    settings = DeploySettings.parse(args)
    found, by_prefix = options(settings), settings.routing == "prefix"
    if by_prefix:
        found = router.configure(found)
    ingress = serve.ingress()(Replica)
    application = serve.deployment(name=DEPLOYMENT)(ingress).options(**found).bind(dict(args))
    if by_prefix and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        application = router.attached(application)
    return application


def options(settings: DeploySettings) -> dict[str, Any]:
    """The options of the deployment, as Ray takes them."""
    actor: dict[str, Any] = {"num_cpus": settings.threads if settings.cpus is None else settings.cpus}
    if settings.gpus:
        actor["num_gpus"] = settings.gpus
    if settings.resources:
        actor["resources"] = dict(settings.resources)
    if settings.labels:
        actor["label_selector"] = dict(settings.labels)
    found: dict[str, Any] = {
        "ray_actor_options": actor,
        "max_ongoing_requests": settings.max_requests,
        "graceful_shutdown_timeout_s": settings.grace_seconds,
        "health_check_period_s": HEALTH_SECONDS,
    }
    if settings.per_node is not None:
        found["max_replicas_per_node"] = settings.per_node
    if settings.autoscaling is None:
        return found | {"num_replicas": settings.replicas}
    return found | {"autoscaling_config": _autoscaling(settings)}


def _autoscaling(settings: DeploySettings) -> dict[str, Any]:
    from ray.serve.config import AutoscalingPolicy

    wanted = settings.autoscaling
    assert wanted is not None
    return {
        "min_replicas": wanted.min_replicas,
        "max_replicas": wanted.max_replicas,
        "upscale_delay_s": wanted.up_seconds,
        "downscale_delay_s": wanted.down_seconds,
        "metrics_interval_s": STATS_SECONDS,
        "look_back_period_s": WINDOW_SECONDS,
        "policy": AutoscalingPolicy(
            policy_function=Pressure, policy_kwargs={"requests": wanted.requests, "cells": wanted.cells}
        ),
    }
