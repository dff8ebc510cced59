"""A simulated Triton: it speaks the v2 protocol, counts as the real one does, and misbehaves on demand.

`simulated_triton` runs one. `World` is the simulation without HTTP and without a clock of its own.
`lab_models` and `demo_models` are models to serve. A contract suite holds the simulation against the real
server; ADR-0005 says what is simulated and what is not.
"""

from governor.simulator import faults
from governor.simulator.catalogue import demo_models, lab_models, models_named
from governor.simulator.connection import Limits
from governor.simulator.inference import Source
from governor.simulator.routes import Endpoint
from governor.simulator.scheduling import ManualScheduler
from governor.simulator.server import SimulatedTriton, simulated_triton
from governor.simulator.world import World

__all__ = [
    "Endpoint",
    "Limits",
    "ManualScheduler",
    "SimulatedTriton",
    "Source",
    "World",
    "demo_models",
    "faults",
    "lab_models",
    "models_named",
    "simulated_triton",
]
