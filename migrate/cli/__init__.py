"""The ``reexport`` command.

main        the group of commands; errors become messages and exit codes
options     what commands share
jobs        run, plan, compile, demo-checkpoint
look        inspect, verify
outputs     list, rollback, gc
fleet       reconcile, history
check       whether an export can be used as it is
diff        what changes between two executables
explain     what an error about layouts means
toolchains  toolchains and its commands: versions of libtpu
topologies  topologies: names of TPU slices
report      report: an HTML file
pages       how commands write such a file
completion  completion in a shell, and what it offers

Every command imports what it needs when it is called: start-up is a feature.
"""

from migrate.cli.main import main

__all__ = ["main"]
