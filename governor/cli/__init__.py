"""The commands of the governor's clients: `prompt`, `status`, `watch`, `admin`, `completion`.

parser.py      what they take; quick to import, as every command line is parsed by it
completion.py  what a shell may offer
running.py     signals, errors and exit codes
advice.py      what to do about an error
stdin.py       standard input that Ctrl-C interrupts
prompt.py, status.py, watch.py, admin.py   the commands
board.py       rows of identities out of the operator's state or the metrics; pure
tables.py      rows as tables
"""

from governor.cli.completion import complete
from governor.cli.parser import add_commands

__all__ = ["add_commands", "complete"]
