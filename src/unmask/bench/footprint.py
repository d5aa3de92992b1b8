"""Memory and start-up, each in a fresh process: what a user's first command costs."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError

PROBE = """
import json, sys
import torch, transformers
import unmask
import unmask.model.native.backbone
from unmask.bench.footprint import peak
from unmask.model.native.build import library
library()
before = peak(restart=True)
model = unmask.load(sys.argv[1], dtype=sys.argv[2] or None, device="cpu", batch_size=1)
model.generate([[1, 2, 3] * 40], max_new_tokens=16, stop_ids=())
networks = [network for network in (model.backbone.network, model.backbone.rough_network) if network]
held = sum({tensor.data_ptr(): tensor.nbytes for network in networks for tensor in network.tensors()}.values())
shape = model.backbone.network.parts.shape
cache = 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim * 256
print(json.dumps({"peak": peak() - before, "minimum": held + cache}))
"""


def peak(*, restart: bool = False) -> int:
    """Bytes of the largest resident set so far; `restart`: of the present one, from which the peak then counts anew.

    Only Linux can restart; elsewhere the peak counts from the start of the process.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if restart:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def memory(ref: str, dtype: str | None) -> dict[str, float]:
    """Bytes at the peak of loading and answering, over what the imports take, and the weights and cache held."""
    done = _python("-c", PROBE, ref, dtype or "")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def first_token(ref: str, dtype: str | None) -> float:
    """Seconds from the command to the first text of `unmask generate`, the best of three."""
    command = [sys.executable, "-m", "unmask", "generate", "--model", ref, "--prompt", "Hi", "--max-new-tokens", "8"]
    command += ["--device", "cpu"]
    command += ["--dtype", dtype] if dtype else []
    times = []
    for _ in range(3):
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.read(1)
            times.append(time.perf_counter() - began)
            _, why = process.communicate()
        if process.returncode or not said:
            raise UnmaskError(f"the first token could not be timed: {why.decode().strip() or 'nothing was written'}")
    return min(times)


def _python(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise UnmaskError(f"a measuring process failed: {(done.stderr.strip().splitlines() or ['silently'])[-1]}")
    return done
