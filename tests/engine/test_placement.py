"""Who starts the ranks, how many a machine gets, which GPU and how many threads each takes: by table, without a GPU."""

import pytest

from fedrs_lightning.engine.ranks.launch import launch_of, tasks_per_node
from fedrs_lightning.engine.ranks.placement import Machine, place, shared_devices
from fedrs_lightning.engine.settings import FabricSettings
from fedrs_lightning.errors import ConfigError, LaunchError

# Variables as Slurm 22.05 sets them.
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_CPUS_ON_NODE": "16",
}


def step(tasks="4", nodelist="n[3-4]", **more):
    number = sum(tasks_per_node(tasks))
    own = {
        "SLURM_STEP_ID": "2",
        "SLURM_STEP_NUM_TASKS": str(number),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NODELIST": nodelist,
    }
    return BATCH | own | more


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("environ", "on_terminal"),
    [
        ({}, True),
        (BATCH, False),  # a batch script without srun, whatever the number of tasks
        (step("1"), False),  # srun -n1 bash script
        (step("1", SLURM_NTASKS="4"), True),  # salloc that opens an interactive step keeps the job's number of tasks
        (step("4", SLURM_PTY_PORT="37663"), True),  # srun -n4 --pty bash
        (step("4") | {"FEDRS_RANK_ZERO": "12", "LOCAL_RANK": "1"}, False),  # a rank that rank 0 started
    ],
)
def test_ranks_are_started_by_this_process(environ, on_terminal):
    assert launch_of(environ, on_terminal) is None


def test_ranks_are_started_by_srun_and_torchrun():
    one = launch_of(step("4", SLURM_PROCID="3", SLURM_LOCALID="3"), False)
    assert (one.by, one.world_size, one.per_node, one.rank, one.local_rank) == ("srun", 4, (4,), 3, 3)
    assert (one.address, one.port) == ("127.0.0.1", 15000 + 17 * 7 + 2)
    two = launch_of(
        step("2,1", SLURM_PROCID="2", SLURM_NODEID="1", SLURM_PTY_PORT="1"), False
    )  # inside srun --pty bash
    assert (two.world_size, two.on_node, two.node, two.rank, two.address) == (3, 1, 1, 2, "n3")
    given = launch_of(step("2(x2)", MASTER_ADDR="a", MASTER_PORT="5"), True)
    assert (given.per_node, given.address, given.port) == ((2, 2), "a", 5)
    torchrun = launch_of(step("1") | TORCHRUN, True)
    assert (torchrun.by, torchrun.world_size, torchrun.on_node, torchrun.rank) == ("torchrun", 8, 4, 5)
    assert (torchrun.local_rank, torchrun.node, torchrun.agent) == (1, 1, True)
    assert (torchrun.address, torchrun.port) == ("host", 29400)


def placed(options, environ, gpus, cores, clients=100, on_terminal=False):
    machine = Machine.of(environ, gpus, cores)
    return place(FabricSettings(**options), launch_of(environ, on_terminal), machine, clients, "NODE_RANK" in environ)


PTY = step("4", SLURM_PTY_PORT="1")


@pytest.mark.parametrize(
    ("options", "environ", "gpus", "cores", "clients", "expected"),
    [
        # a workstation: every GPU, or one rank a core, never more than clients
        ({}, {}, 4, 16, 100, ("gpu", (0, 1, 2, 3), 1, 4)),
        ({}, {}, 4, 16, 3, ("gpu", (0, 1, 2), 1, 5)),
        ({}, {}, 0, 16, 5, ("cpu", (0,) * 5, 1, 1)),
        ({"accelerator": "cpu"}, {}, 4, 2, 5, ("cpu", (0, 0), 1, 1)),
        ({"devices": 3, "threads_per_rank": 2}, {}, 0, 2, 8, ("cpu", (0, 0, 0), 1, 2)),
        # several ranks on a GPU
        ({"devices": 1, "ranks_per_device": 4}, {}, 2, 16, 100, ("gpu", (0, 0, 0, 0), 1, 4)),
        ({"devices": 2, "ranks_per_device": 2}, {}, 2, 16, 1, ("gpu", (0, 0, 1, 1), 1, 4)),
        ({"ranks_per_device": 4}, {}, 2, 16, 6, ("gpu", (0, 0, 0, 1, 1, 1), 1, 2)),
        ({"devices": 1, "ranks_per_device": 2}, {}, 0, 1, 8, ("cpu", (0, 0), 1, 1)),
        ({"ranks_per_device": 2}, {}, 0, 8, 100, ("cpu", (0,) * 8, 1, 1)),
        # Slurm without srun: a batch script, one task, an interactive step; Slurm does not always bind to its cores
        ({"devices": 8}, BATCH, 8, 16, 100, ("gpu", tuple(range(8)), 1, 2)),
        ({}, BATCH, 2, 64, 100, ("gpu", (0, 1), 1, 8)),
        ({}, BATCH | {"SLURM_CPUS_ON_NODE": "1"}, 0, 64, 100, ("cpu", (0,), 1, 1)),
        ({"devices": 2}, step("1"), 2, 16, 100, ("gpu", (0, 1), 1, 8)),
        # srun: as many ranks as tasks, and cores that are the task's own are not divided again
        ({}, step("4"), 4, 4, 1, ("gpu", (0,) * 4, 1, 4)),
        ({}, step("4"), 4, 16, 1, ("gpu", (0,) * 4, 1, 4)),
        ({}, step("4", SLURM_CPUS_PER_TASK="4"), 1, 8, 1, ("gpu", (0,) * 4, 1, 4)),
        ({"devices": 4, "num_nodes": 2}, step("4(x2)"), 0, 4, 1, ("cpu", (0,) * 4, 2, 1)),
        ({}, step("2,1", SLURM_NODEID="1"), 0, 4, 1, ("cpu", (0,), 2, 1)),
        ({"devices": 2, "ranks_per_device": 2}, step("4"), 2, 16, 1, ("gpu", (0,) * 4, 1, 4)),
        # torchrun binds to no cores
        ({}, TORCHRUN, 4, 16, 1, ("gpu", (0,) * 4, 2, 4)),
        # by hand, once on each machine
        ({"num_nodes": 2}, {"NODE_RANK": "1"}, 2, 4, 9, ("gpu", (0, 1), 2, 2)),
    ],
)
def test_ranks_devices_and_threads(options, environ, gpus, cores, clients, expected):
    made = placed(options, environ, gpus, cores, clients)
    assert (made.accelerator, made.devices, made.num_nodes, made.threads) == expected
    assert made.ranks == len(expected[1])


def test_an_interactive_step_starts_its_ranks_itself():
    assert placed({"devices": 2}, PTY, 2, 16, on_terminal=True).devices == (0, 1)


@pytest.mark.parametrize(
    ("options", "environ", "gpus", "kind", "text"),
    [
        ({"accelerator": "gpu"}, {}, 0, ConfigError, "torch sees no CUDA device"),
        ({"devices": 3}, {}, 2, ConfigError, "fabric.devices=3, but torch sees 2 CUDA device"),
        ({"devices": 0}, {}, 0, ConfigError, "fabric.devices=0 must be at least 1, or auto"),
        ({"ranks_per_device": 0}, {}, 0, ConfigError, "fabric.ranks_per_device=0 must be at least 1"),
        ({"threads_per_rank": 0}, {}, 0, ConfigError, "fabric.threads_per_rank=0 must be at least 1"),
        ({"join_timeout": 0}, {}, 0, ConfigError, "fabric.join_timeout=0 must be above 0"),
        ({"num_nodes": 2}, BATCH, 0, ConfigError, "fabric.num_nodes=2, but this process was started alone"),
        ({"devices": 1}, step("2"), 0, LaunchError, "srun started 2 rank.s. on a machine, but fabric.devices=1;"),
        ({"devices": 2}, step("2,1"), 0, LaunchError, "srun started 1 rank.s. on a machine, but fabric.devices=2;"),
        ({"num_nodes": 1}, step("2(x2)"), 0, LaunchError, "started ranks on 2 machine.s., but fabric.num_nodes=1"),
        (
            {"devices": 1, "ranks_per_device": 2},
            TORCHRUN,
            0,
            LaunchError,
            "torchrun started 4 .* fabric.ranks_per_device=2; leave",
        ),
    ],
)
def test_what_does_not_agree_is_said(options, environ, gpus, kind, text):
    with pytest.raises(kind, match=text):
        placed(options, environ, gpus, 4)


@pytest.mark.parametrize(
    ("seen", "ranks_per_device", "expected"),
    [
        ([(0, "ab")] * 2, 1, [0, 1]),  # all tasks see all GPUs
        ([(0, "a"), (0, "b"), (1, "a"), (1, "b")], 1, [0, 0, 0, 0]),  # --gpus-per-task=1
        # --gpu-bind=closest on two sockets, tasks dealt out in turn and one after another
        ([(0, "ab"), (0, "cd"), (0, "ab"), (0, "cd")], 1, [0, 0, 1, 1]),
        ([(0, "ab"), (0, "ab"), (0, "cd"), (0, "cd")], 1, [0, 1, 0, 1]),
        ([(0, "ba"), (0, "ab")], 1, [0, 0]),  # the same GPUs under other numbers
        ([(0, "ab")] * 4, 2, [0, 0, 1, 1]),
        ([(0, "ab")] * 3, 4, [0, 0, 1]),
        ([(0, "a")] * 4, 4, [0, 0, 0, 0]),
        ([(0, "a"), (1, "ab"), (1, "ab")], 1, [0, 0, 1]),
    ],
)
def test_every_rank_takes_a_gpu_that_it_sees(seen, ranks_per_device, expected):
    assert shared_devices(seen, ranks_per_device) == expected


@pytest.mark.parametrize(
    ("seen", "ranks_per_device", "text"),
    [
        (
            [(0, "a")] * 2,
            1,
            r"2 ranks on a machine with 1 GPU\(s\), .* fabric.ranks_per_device=1; start one",
        ),
        ([(1, "ab"), (0, "ab"), (0, "ab"), (0, "ab")], 1, "3 ranks on a machine with 2 GPU"),
        ([(0, "a"), (0, "a"), (0, "b")], 1, "3 ranks"),
        ([(0, "")], 1, "0 visible to rank 0"),
    ],
)
def test_more_ranks_than_gpus_may_hold_are_refused(seen, ranks_per_device, text):
    with pytest.raises(LaunchError, match=text):
        shared_devices(seen, ranks_per_device)
