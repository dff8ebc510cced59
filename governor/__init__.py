"""The governor: slot credits for models on Triton, freed when the backend proves that the work has ended.

errors.py     every error, with whose fault it is
config/       one TOML file, validated whole
core/         the decisions: evidence, credits, admission, event order; pure
triton/       the only code that speaks HTTP to Triton
identity/     one nursery per model on a backend: calls, lanes, poller, epoch actor
backend.py    is the server there
turn.py       one text to one model and back
session.py    prompts in order and their events
service.py    all of it for one configuration
client/       sessions and prompts of a governor, from Python; needs nothing of the rest
cli/          the commands of the client
simulator/    a Triton that misbehaves on command
demo/         a real Triton, demo models and a governor in one command
"""

from importlib.metadata import version

__version__ = version("triton-governor")
