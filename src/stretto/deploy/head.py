"""The cluster of one machine: a process that holds Ray's own, until it is told to end.

`stretto deploy up` starts it where no address is given: `python -m stretto.deploy.head FOLDER RUNTIME CPUS
GPUS`. It says in FOLDER/cluster.json where the cluster is, and takes it down on SIGTERM. Ray's own `ray
stop` would end every cluster on the machine, also others' own.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from stretto.deploy.environment import KEY_HEADER, SESSION_VARIABLE, stay_on_loopback

STATE_FILE = "cluster.json"
OBJECT_STORE_BYTES = 100 << 20  # nothing large goes through it


def main(folder: Path, runtime: Path, cpus: float, gpus: float) -> None:
    """Hold a cluster until a signal comes."""
    import ray

    stay_on_loopback()
    _send_no_logs()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    state, part = folder / STATE_FILE, folder / f"{STATE_FILE}.{os.getpid()}"
    context = ray.init(
        num_cpus=cpus,
        num_gpus=gpus or None,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _temp_dir=str(runtime / "ray"),
        _node_ip_address="127.0.0.1",
    )
    try:
        address = context.address_info["gcs_address"]
        haproxy = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"
        known = {"pid": os.getpid(), "address": address, "runtime": str(runtime), "haproxy": haproxy}
        known["tenants"] = os.environ.get(SESSION_VARIABLE) == KEY_HEADER
        part.write_text(json.dumps(known))
        part.replace(state)
        ended.wait()
    finally:
        state.unlink(missing_ok=True)
        ray.shutdown()
        shutil.rmtree(runtime, ignore_errors=True)


def _send_no_logs() -> None:
    """Leave out the process that reads all logs ten times a second, for drivers that asked for none."""
    from ray._private.node import Node

    Node.start_log_monitor = lambda self: None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
