"""`infer` of a no-op model on a real Triton, direct and through the governor: `python -m bench.overhead`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import trio

from bench.lab import Table, machine
from bench.load import Plan, Result, run
from bench.targets import INFER, TENSOR, Place, governor
from governor.demo.install import install, why_not_supported
from governor.demo.ports import free_ports
from governor.demo.triton import RealTriton

if TYPE_CHECKING:
    from bench.targets import Running

MODELS = Path(__file__).parent / "models"


def measure(ports: dict[str, int], governed: Running, connections: int, rounds: int, seconds: float) -> Table:
    """Alternates the order each round, so that a noisy neighbour hits both."""
    assert governed.server is not None
    seen: dict[str, list[Result]] = {name: [] for name in ports}
    for number in range(rounds):
        for name in ports if number % 2 == 0 else reversed(ports):
            plan = Plan(
                port=ports[name],
                path=INFER,
                body=TENSOR,
                connections=connections,
                seconds=seconds,
                target_pid=governed.server.pid,
            )
            seen[name].append(run(plan))
    table = Table(
        f"Real Triton, no-op python model, {connections} connection(s), closed loop",
        ["target", "requests/s", "p50 ms", "p99 ms", "added p50", "added p99", "governor CPU us/request", "not 200"],
    )
    direct = {percentile: median(each.ms(percentile) for each in seen["direct"]) for percentile in ("p50", "p99")}
    for name, results in seen.items():
        p50, p99 = (median(each.ms(percentile) for each in results) for percentile in ("p50", "p99"))
        table.rows.append(
            [
                name,
                median(each.per_second for each in results),
                p50,
                p99,
                p50 - direct["p50"],
                p99 - direct["p99"],
                median(each.target_cpu_us for each in results) if name == "governor" else None,
                sum(each.total - each.answers.get("200", 0) + each.failures for each in results),
            ]
        )
    return table


async def main() -> None:
    """Starts a real Triton and a governor, measures, prints tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run")
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 8])
    options = parser.parse_args()
    if (reason := why_not_supported()) is not None:
        sys.exit(f"No real Triton here: {reason}")
    installation = await install(Path(), report=print)
    http_port, grpc_port, metrics_port, port, spare_port = free_ports(5)
    print(machine())
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        await stack.enter_async_context(
            RealTriton(
                installation,
                run_dir=folder,
                repository=MODELS,
                models=["noop"],
                http_port=http_port,
                grpc_port=grpc_port,
                metrics_port=metrics_port,
            )
        )
        place = Place(
            folder=folder, port=port, spare_port=spare_port, backend_port=http_port, slots=max(options.connections)
        )
        governed = governor(place)
        assert governed.server is not None
        with governed.server:
            for connections in options.connections:
                ports = {"direct": http_port, "governor": port}
                print(f"\n{measure(ports, governed, connections, options.rounds, options.seconds).text()}", flush=True)


if __name__ == "__main__":
    trio.run(main)
