"""A node that is lost: two raylets on this machine stand for two machines, and one of them is killed."""

import asyncio
import os
import subprocess
import sys
import time

from live_cluster import SECONDS, Fleet, live, load, replicas, until, visiting
from stretto.deploy.environment import cluster_environment, haproxy_path, runtime_folder

pytestmark = live
CLIENTS = 6
SHAPE = ["--replicas", 2, "--threads", 1, "--set", "per_node=1", "--set", "cpus=1"]

# With an address Ray takes this machine's own one for a client, and finds no node there.
LOOPBACK = "from stretto.deploy.environment import stay_on_loopback; stay_on_loopback(); "
ON_LOOPBACK = [sys.executable, "-c", f"{LOOPBACK}from stretto.cli import main; main()"]

# A process that holds a cluster: Ray reads its environment once. A line on stdin is a command.
HOLD = """
import os, signal, sys
from stretto.deploy.environment import stay_on_loopback
stay_on_loopback()
from ray.cluster_utils import Cluster
def node(**more):
    return dict(num_cpus=2, object_store_memory=100 << 20, node_ip_address="127.0.0.1", **more)
cluster = Cluster(initialize_head=True, head_node_args=node(include_dashboard=False, temp_dir=sys.argv[1]))
second = cluster.add_node(**node())
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        os.kill(second.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    if line == "add\\n":
        cluster.add_node(**node())
    print("done", flush=True)
cluster.shutdown()
"""


class TwoNodes(Fleet):
    """Two raylets, of which the second can be killed and another one added."""

    def __init__(self, home, model):
        runtime = runtime_folder()
        (runtime / "ray").mkdir()  # where Ray writes the address of a cluster that it has made for tests
        made = cluster_environment(home / "deploy", runtime, haproxy_path() is not None)
        made |= {"STRETTO_HOME": str(home), "RAY_TMPDIR": str(runtime)}
        super().__init__({**os.environ, **made}, models=[model], program=ON_LOOPBACK)
        self.holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(runtime / "ray")],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = next(line for line in self.holder.stdout if line.startswith("127.0.0.1:")).strip()

    def run(self, *words):
        return super().run(*words, "--address", self.address)

    def say(self, word):
        self.holder.stdin.write(f"{word}\n")
        self.holder.stdin.flush()
        while self.holder.stdout.readline() not in ("done\n", ""):
            pass

    def end(self):
        self.holder.stdin.close()
        self.holder.wait(SECONDS)
        self.holder.stdout.close()


def test_a_lost_node_loses_only_what_it_was_answering(tmp_path, smollm2_path):
    fleet = TwoNodes(tmp_path, f"smollm2={smollm2_path}")

    async def run():
        async with visiting(fleet.url) as web:
            before = await replicas(web, 2)
            async with load(web, CLIENTS, tokens=64) as heard:
                await until(lambda: len({one.replica for one in heard if one.done}) == 2)
                killed = time.monotonic()
                await asyncio.to_thread(fleet.say, "kill")
                await asyncio.sleep(5)
                added = time.monotonic()
                await asyncio.to_thread(fleet.say, "add")
                back = await until(
                    lambda: next((one for one in heard if one.replica and one.replica not in before), None)
                )
            return before, heard, killed, added, back

    try:
        fleet.up(*SHAPE)
        before, heard, killed, added, back = asyncio.run(run())
    finally:
        fleet.end()
    lost = [one for one in heard if one.error]
    in_flight = [one for one in heard if one.started < killed < one.ended]
    meanwhile = [one for one in heard if killed < one.started < added and one.done]
    print(
        f"{len(heard)} requests, {len(in_flight)} in flight, {len(lost)} lost, {len(meanwhile)} answered "
        f"by the other node before a new one came; its replica answered {back.ended - added:.1f} s later: "
        f"{sorted({one.error for one in lost})}"
    )
    assert len(lost) < len(in_flight)
    assert [one for one in lost if one.started > killed] == []
    assert len({one.replica for one in lost}) <= 1  # all were the lost node's
    assert {one.replica for one in lost} <= set(before)
    assert meanwhile
    assert back.done
