"""`python -m governor.demo`, which is what `make run` runs."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the demonstration; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The imports take half a second. Until there is something to stop, Ctrl-C ends this without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from governor.demo import demonstration  # noqa: PLC0415  # see above

    return demonstration.main()


if __name__ == "__main__":
    sys.exit(main())
