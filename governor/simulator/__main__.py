"""`python -m governor.simulator --port 8000 --models sentiment,slow`: a simulated Triton on its own."""

from __future__ import annotations

import argparse
import signal
import sys
import time

import trio

from governor.simulator.catalogue import models_named
from governor.simulator.rules import DEFAULT_VERSION
from governor.simulator.server import simulated_triton


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m governor.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port of the v2 protocol (%(default)s)")
    parser.add_argument("--metrics-port", type=int, help="port of /metrics (the port plus two)")
    parser.add_argument("--models", default="", help="comma-separated names (all of them)")
    parser.add_argument("--id", default="triton", help="what GET /v2 tells as the name (%(default)s)")
    parser.add_argument("--version", default=DEFAULT_VERSION, help="Triton release to behave like (%(default)s)")
    parser.add_argument("--work-log", help="file for the start and end of every execution")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    sources = models_named([name for name in arguments.models.split(",") if name])
    metrics_port = arguments.port + 2 if arguments.metrics_port is None else arguments.metrics_port
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with simulated_triton(
            sources,
            version=arguments.version,
            server_id=arguments.id,
            host=arguments.host,
            http_port=arguments.port,
            metrics_port=metrics_port,
            worklog_path=arguments.work_log,
            unix_start=time.time(),
        ) as triton:
            ", ".join(source.config.name for source in sources)
            names = ", ".join(source.config.name for source in sources)
            said = f"simulated Triton at {triton.url} (metrics: {triton.metrics_url}) with: {names}\n"
            sys.stdout.write(said)
            sys.stdout.flush()
            async for _number in signals:
                return


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    arguments = _arguments()
    try:
        trio.run(_serve, arguments)
    except* OSError as failed:
        sys.exit(f"port {arguments.port} or the metrics port cannot be used: {failed.exceptions[0]}")
    except* ValueError as failed:
        sys.exit(str(failed.exceptions[0]))


if __name__ == "__main__":
    main()
