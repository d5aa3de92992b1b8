"""Who does the jobs: this process, or several by Ray, here or on the nodes of a cluster.

Ray is told where it is by RAY_ADDRESS, or finds a cluster that was started on this machine, or starts one here.
"""

import contextlib
import importlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.api import Model, load
from unmask.errors import CapacityError, MissingExtraError, UnmaskError
from unmask.model.checkpoint import Checkpoint
from unmask.model.choose import backbone_for

Task = Callable[[Model, Sequence[Any]], Iterator[Any]]
"""What is done with jobs: results in the order in which they end. It travels to other processes, and so do jobs."""
Work = Callable[[Task, Sequence[Any]], Iterator[Any]]
CHUNKS = 8
"""Batches' worth of jobs that a worker takes at a time."""


@contextlib.contextmanager
def workers(checkpoint: Checkpoint, loading: dict[str, Any], count: int) -> Iterator[Work]:
    """A function that does jobs. loading: the arguments of `api.load`; count: how many processes.

    MissingExtraError where more than one are asked for and Ray is not installed.
    """
    if count == 1:
        backbone = backbone_for(checkpoint, loading["backbone"], int8=loading["dtype"] == "int8")
        model = Model(checkpoint, backbone, loading["batch_size"])
        yield lambda task, jobs: task(model, jobs)
        return
    ray = need_ray()
    begun = not ray.is_initialized()
    if begun:
        ray.init(log_to_driver=False, logging_level="error")
    try:
        actors = _actors(ray, loading, count)
        yield lambda task, jobs: _spread(ray, actors, task, jobs, loading["batch_size"])
    finally:
        if begun:
            ray.shutdown()


def need_ray(part: str = "") -> Any:
    """Ray, or MissingExtraError. part: of it that must be there too, as `serve`."""
    try:
        import ray

        if part:
            importlib.import_module(f"ray.{part}")
    except ImportError:
        raise MissingExtraError(f"ray[{part}]" if part else "ray", "scale") from None
    return ray


@dataclass(frozen=True)
class Failed:
    """Why a worker ended its work."""

    why: str


class Worker:
    """One process with a model of its own."""

    def load(self, loading: dict[str, Any]) -> str | None:
        """Load the model; what is wrong with it as text, since not every error survives the way to another process."""
        try:
            self.model = load(**loading)
        except UnmaskError as error:
            return str(error)
        return None

    def work(self, task: Task, jobs: Sequence[Any]) -> Iterator[Any]:
        """Results as they come; a `Failed` is the error that ended the work."""
        try:
            yield from task(self.model, jobs)
        except UnmaskError as error:
            yield Failed(str(error))


def _actors(ray: Any, loading: dict[str, Any], count: int) -> list[Any]:
    """Workers that share the processors and GPUs of the cluster equally, each with its model loaded."""
    whole = ray.cluster_resources()
    options = {"num_cpus": share(whole.get("CPU", 1), count)}
    if loading["device"] != "cpu" and whole.get("GPU"):
        options["num_gpus"] = share(whole["GPU"], count)
    actors = [ray.remote(Worker).options(**options).remote() for _ in range(count)]
    problems = _get(ray, [actor.load.remote(loading) for actor in actors])
    problem = next((text for text in problems if text is not None), None)
    if problem is not None:
        raise UnmaskError(problem)
    return actors


def share(total: float, count: int) -> float:
    """What each of `count` workers may reserve, so that all of them fit."""
    return float(total // count) if total >= count else math.floor(total / count * 1e4) / 1e4


def _spread(ray: Any, actors: list[Any], task: Task, jobs: Sequence[Any], batch: int) -> Iterator[Any]:
    """Hand out chunks of neighbouring jobs; a worker gets the next one when it has done its own."""
    size = max(1, min(CHUNKS * batch, math.ceil(len(jobs) / len(actors))))
    chunks = deque(jobs[at : at + size] for at in range(0, len(jobs), size))
    running: dict[Any, Any] = {}

    def start(actor: Any) -> None:
        if chunks:
            stream = actor.work.options(num_returns="streaming").remote(task, chunks.popleft())
            running[stream] = actor

    for actor in actors:
        start(actor)
    while running:
        [ready], _ = ray.wait(list(running), num_returns=1)
        try:
            result = _get(ray, next(ready))
        except StopIteration:
            start(running.pop(ready))
            continue
        if isinstance(result, Failed):
            raise CapacityError(result.why)
        yield result


def _get(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:  # a fault of ours
        raise
    except ray.exceptions.RayError:
        raise CapacityError(
            "a worker died, perhaps for want of memory; --resume continues, with fewer --workers if it dies again"
        ) from None
