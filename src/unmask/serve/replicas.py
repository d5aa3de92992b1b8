"""Several engines behind one address: replicas by Ray Serve, on this machine or on the nodes of a cluster.

Every replica is a process with the whole server in it (`app`); Ray's proxy gives a request to the less loaded of two
replicas drawn at random, watches their health and starts a new one where one died. A request that a replica had when it
died ends with a status 500 or a stream that breaks off. The limits of `Serving` are those of each replica.
"""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from unmask.api import load, opened
from unmask.errors import ConfigError, UnmaskError
from unmask.serve.app import Service, app_for
from unmask.serve.settings import Serving
from unmask.spread import need_ray, share

APP = "unmask"


def serve_replicas(how: dict[str, Any], name: str, settings: Serving) -> None:
    """Serve with `settings.replicas` replicas until a signal says otherwise. how: the arguments of `api.load`.

    MissingExtraError where Ray Serve is not installed; what is wrong with the model or the address is said before any
    replica starts, or as soon as the first one knows.
    """
    ray = need_ray("serve")
    from ray import serve

    opened(**{key: how[key] for key in ("ref", "dtype", "device", "mask_id")})
    logging.getLogger("ray").setLevel(logging.ERROR)
    begun = not ray.is_initialized()
    if begun:
        ray.init(log_to_driver=False, logging_level="error")
    try:
        print(f"starting {settings.replicas} replicas of {name} …", file=sys.stderr, flush=True)
        serve.start(
            http_options={"host": settings.host, "port": settings.port},
            proxy_location="EveryNode",
            logging_config={"log_level": "ERROR", "enable_access_log": False},
        )
        _run(serve, deployment(ray, serve, how, name, settings), settings)
        print(
            f"serving {name} at http://{settings.host}:{settings.port}/v1 (Ctrl-C stops)", file=sys.stderr, flush=True
        )
        _until_told()
    finally:
        serve.shutdown()
        if begun:
            ray.shutdown()


def _run(serve: Any, application: Any, settings: Serving) -> None:
    try:
        serve.run(application, name=APP, route_prefix="/")
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the replicas do not start: {reason}") from None


def deployment(ray: Any, serve: Any, how: dict[str, Any], name: str, settings: Serving) -> Any:
    """The application as Ray Serve takes it. Replicas share the processors and GPUs of the cluster equally."""
    whole, count = ray.cluster_resources(), settings.replicas
    options: dict[str, Any] = {"num_cpus": share(whole.get("CPU", 1), count)}
    if how["device"] != "cpu" and whole.get("GPU"):
        options["num_gpus"] = share(whole["GPU"], count)
    threads = max(1, int(options["num_cpus"]))
    options["runtime_env"] = {"env_vars": {"OMP_NUM_THREADS": str(threads)}}
    made = serve.deployment(
        name="replica",
        num_replicas=count,
        max_ongoing_requests=how["batch_size"] + settings.queue + 8,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=settings.grace,
        ray_actor_options=options,
    )
    return made(serve.ingress(_builder(how, name, settings))(Replica)).bind()


class Replica:
    """What Ray asks a replica beside its routes."""

    app: Any

    def check_health(self) -> None:
        """Raises where the engine is down, so that Ray starts another replica."""
        worker = self.app.state.service.worker
        if worker.state == "down":
            raise RuntimeError(worker.error)


def _builder(how: dict[str, Any], name: str, settings: Serving) -> Callable[[], Any]:
    """What makes the application in a replica's own process."""

    def build() -> Any:
        service = Service(lambda: load(**how), name, settings)
        service.worker.start()
        service.worker.ready.wait()
        if isinstance(service.worker.failed, UnmaskError):
            raise RuntimeError(str(service.worker.failed))  # not every error of ours survives the way between processes
        if service.worker.failed is not None:
            raise service.worker.failed
        app = app_for(service)
        app.state.service = service
        return app

    return build


def _until_told() -> None:
    told = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: told.set())
    told.wait()
