"""An Airflow DAG that reconciles a fleet every night. Copy it to the DAGs folder.

The tasks run `reexport` as a command, so that Airflow and reexport can live in different Python environments. Settings
are environment variables of the Airflow worker: REEXPORT (the command, default `reexport`) and REEXPORT_FLEET (the
fleet file, default /etc/reexport/fleet.yaml).
"""

from __future__ import annotations

import datetime
import os

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

COMMAND = os.environ.get("REEXPORT", "reexport")
FLEET = os.environ.get("REEXPORT_FLEET", "/etc/reexport/fleet.yaml")

with DAG(
    dag_id="reexport_reconcile",
    schedule="30 2 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": datetime.timedelta(minutes=5)},
    doc_md=__doc__,
) as dag:
    # exit code 3 says that there is something to do, which is no failure; without work the next task is skipped
    look = BashOperator(
        task_id="look",
        bash_command=f"{COMMAND} reconcile {FLEET} --dry-run; code=$?; "
        "if [ $code -eq 3 ]; then exit 0; elif [ $code -eq 0 ]; then exit 99; else exit $code; fi",
        skip_on_exit_code=99,
        append_env=True,
    )
    # killed on a time-out, it leaves what was current, and the retry goes on where it stopped
    reconcile = BashOperator(
        task_id="reconcile",
        bash_command=f"{COMMAND} reconcile {FLEET} --log-format json",
        execution_timeout=datetime.timedelta(hours=12),
        append_env=True,
    )
    _ = look >> reconcile
