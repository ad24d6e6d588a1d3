"""Synthetic run directories, written by the same classes that real runs use."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedrs_lightning.results.store import RunStore
from fedrs_lightning.results.summary import summarise

PROTOCOLS = {
    "personal_common": "each client's composed model on the common test set, plain mean over clients",
    "personal_own": "each client's composed model on its own test data",
    "global": "one model on the common test set",
}
SIZES = (120, 40, 300)


def score(level: float, number: int, client: int, seed: int) -> float:
    """A learning curve with a known formula: tests recompute it."""
    return level * (1 - math.exp(-number / 4)) - 0.02 * client + 0.01 * math.sin(number + 3 * seed)


def write_run(
    root: Path,
    *,
    method: str = "FedMAD",
    seed: int = 0,
    level: float = 0.6,
    num_rounds: int = 6,
    done: int | None = None,
    label: str | None = None,
    experiment: str = "eurosat_small",
    protocol: str = "personal_common",
    name: str | None = None,
    config: dict | None = None,
    synthetic: bool = False,
    digest: str | None = None,
    config_hash: str = "c0ffee",
) -> RunStore:
    """Write a run of `done` of `num_rounds` rounds on three clients; a whole one gets its result.json."""
    done = num_rounds if done is None else done
    store = RunStore(root / experiment / (name or f"{method}-s{seed}-{label or ''}0123abcd".replace(" ", "_")))
    store.write_config(
        {
            "seed": seed,
            "method": {"class_path": method},
            "schedule": {"num_rounds": num_rounds},
            "run": {"root": str(root)},
        }
        | (config or {})
    )
    store.write_environment({"host": "test"})
    for number in range(1, done + 1):
        scores = [score(level, number, client, seed) for client in range(len(SIZES))]
        weighted = sum(size * value for size, value in zip(SIZES, scores, strict=True)) / sum(SIZES)
        metrics = {"train/loss": 2.0 / number, f"{protocol}/overall_accuracy": sum(scores) / len(scores)}
        if protocol != "global":
            metrics |= {f"{protocol}/overall_accuracy_weighted": weighted, "personal_own/overall_accuracy": scores[0]}
        if method == "FedAvg":
            metrics["global/overall_accuracy"] = sum(scores) / len(scores)
        store.append_round(
            {
                "round": number,
                "cohort": [0, 1, 2],
                "metrics": metrics,
                "bytes": {"up": 10, "down": 20},
                "timing": {"seconds": 0.5 + seed},
            }
        )
        rows: list[dict] = []
        for client, value in enumerate(scores):
            train = {
                "round": number,
                "client": client,
                "phase": "train",
                "num_samples": SIZES[client],
                "num_steps": 2,
                "loss/task": 1.0,
            }
            if method == "FedMAD":
                share = [1 + 0.5 * (-1) ** (number + k) * (k != 2) for k in range(3)]
                train |= {"weight": share[client] / sum(share), "fedmad/score": 0.4 + 0.1 * (-1) ** (number + client)}
            rows.append(train)
            evaluate = {
                "round": number,
                "client": client,
                "phase": "evaluate",
                "overall_accuracy": value,
                "num_test": 170,
            }
            rows.append(evaluate | {"protocol": "personal_common"})
        store.append_clients(rows)
    if done == num_rounds:
        store.write_result(
            summarise(
                store.rounds(),
                store.clients(),
                experiment=experiment,
                method=method,
                label=label,
                seed=seed,
                config_hash=config_hash,
                num_rounds=num_rounds,
                protocol=protocol,
                metric="overall_accuracy",
                protocols={protocol: PROTOCOLS[protocol]},
                members=[{"client": k, "name": f"site {k}", "num_samples": size} for k, size in enumerate(SIZES)],
                classes=["Forest", "River"],
                synthetic_data=synthetic,
                digest=digest or f"{method}{seed}{level}",
                digest_model="",
            )
        )
    return store


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunStore]:
    """`write_run` below tmp_path/runs."""
    return lambda **options: write_run(tmp_path / "runs", **options)


@pytest.fixture(scope="session")
def curve() -> Callable[[float, list[int], int], np.ndarray]:
    """Values [seeds, rounds, clients] behind the runs of `write_run`, and `SIZES`, for tests that recompute."""

    def values(level: float, seeds: list[int], num_rounds: int = 6) -> np.ndarray:
        return np.array(
            [
                [[score(level, n, k, seed) for k in range(len(SIZES))] for n in range(1, num_rounds + 1)]
                for seed in seeds
            ]
        )

    return values
