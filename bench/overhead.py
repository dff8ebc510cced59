"""`infer` of a no-op model, direct and through the governor, alternating in one run: `python -m bench.overhead`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import httpx
import trio

from bench.load import Sample, closed_loop, post
from governor.demo.install import install, why_not_supported
from governor.demo.ports import free_ports
from governor.demo.triton import RealTriton

MODELS = Path(__file__).parent / "models"
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [64], "data": [0.5] * 64}]}).encode()


def config(port: int, triton: RealTriton, slots: int) -> str:
    """A governor in front of the no-op model."""
    return f"""
[server]
port = {port}
[[backends]]
name = "local"
url = "{triton.url}"
metrics_url = "{triton.metrics_url}"
[[models]]
name = "noop"
backend = "local"
slots = {slots}
kind = "infer"
"""


async def wait_ready(url: str, seconds: float) -> None:
    """Polls until the governor can use its model."""
    with trio.fail_after(seconds):
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    if (await client.get(f"{url}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                await trio.sleep(0.05)


async def measure(ports: dict[str, int], connections: int, rounds: int, duration_s: float) -> dict[str, list[Sample]]:
    """Alternates the order each round, so that a noisy neighbour hits both."""
    samples: dict[str, list[Sample]] = {name: [] for name in ports}
    for number in range(rounds):
        names = list(ports) if number % 2 == 0 else list(reversed(ports))
        for name in names:
            request = post("127.0.0.1", ports[name], "/v2/models/noop/infer", BODY)
            samples[name].append(
                await closed_loop("127.0.0.1", ports[name], request, connections=connections, duration_s=duration_s)
            )
    return samples


def report(connections: int, samples: dict[str, list[Sample]]) -> dict[str, object]:
    """Prints one table and returns its numbers."""
    rows: dict[str, dict[str, float]] = {}
    for name, runs in samples.items():
        rows[name] = {
            "requests_per_s": median(run.per_second for run in runs),
            "p50_ms": median(run.percentile_ms(50) for run in runs),
            "p99_ms": median(run.percentile_ms(99) for run in runs),
            "failures": sum(run.failures for run in runs),
        }
    print(f"\n{connections} connection(s), medians of {len(samples['direct'])} rounds")
    print(f"{'':12}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'failures':>10}{'ratio':>8}")
    for name, row in rows.items():
        ratio = row["requests_per_s"] / rows["direct"]["requests_per_s"]
        print(
            f"{name:12}{row['requests_per_s']:12.0f}{row['p50_ms']:10.2f}{row['p99_ms']:10.2f}"
            f"{row['failures']:10.0f}{ratio:8.2f}"
        )
    return {"connections": connections, "rows": rows}


async def main() -> None:
    """Starts a real Triton and a governor, measures, prints tables and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run")
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 8])
    options = parser.parse_args()
    if (reason := why_not_supported()) is not None:
        sys.exit(f"No real Triton here: {reason}")
    installation = await install(Path(), report=print)
    http_port, grpc_port, metrics_port, port = free_ports(4)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        async with RealTriton(
            installation,
            run_dir=run_dir,
            repository=MODELS,
            models=["noop"],
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
        ) as triton:
            file = run_dir / "governor.toml"
            file.write_text(config(port, triton, slots=max(options.connections)))
            governor = subprocess.Popen([sys.executable, "-m", "api.cli", "serve", str(file)])
            try:
                await wait_ready(f"http://127.0.0.1:{port}", 20)
                ports = {"direct": http_port, "governor": port}
                print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()}")
                results = [
                    report(count, await measure(ports, count, options.rounds, options.seconds))
                    for count in options.connections
                ]
            finally:
                governor.terminate()
                governor.wait(20)
    print(json.dumps(results))


if __name__ == "__main__":
    trio.run(main)
