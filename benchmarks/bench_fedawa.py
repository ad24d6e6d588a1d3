"""FedAWA's server step: the matrix of inner products against whole vectors, CPU seconds, ResNet-18, ten clients.

    python benchmarks/bench_fedawa.py [--clients 10] [--steps 1 10] [--backbone resnet18]

The direct form is what one writes down: K updates of the whole model, their mean and distances, and a backward pass
through all of them in every step, in float32 as in released code. The matrix form works in float64. Aggregation is not
a part of either.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional as F

from common import finish, report
from fedrs_lightning.methods.fedawa import FedAWA
from fedrs_lightning.tasks import ClassificationTask
from fedrs_lightning.types import Client, State, Upload


def direct(method: FedAWA, server: State, uploads: list[Upload], keys: list[str]) -> torch.Tensor:
    """Logits after the steps, over whole vectors."""
    w = torch.cat([server[key].reshape(-1) for key in keys])
    theta = torch.stack([torch.cat([upload.state[key].reshape(-1) for key in keys]) for upload in uploads])
    logits = server["fedawa/logits"].clone().requires_grad_(True)
    optimizer = torch.optim.Adam([logits], lr=1e-3, betas=method.betas)
    for _ in range(method.server_steps):
        share = logits.softmax(0).float()
        tau = theta - w
        spread = share @ (tau - share @ tau).norm(dim=1)
        apart = share @ (1 - F.cosine_similarity(w[None], theta, dim=1))
        optimizer.zero_grad()
        (spread + apart).backward()
        optimizer.step()
    return logits.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10], help="steps of the server's optimiser")
    parser.add_argument("--backbone", default="resnet18")
    options = parser.parse_args()
    torch.manual_seed(0)
    task = ClassificationTask(options.backbone, 10, 3)
    clients = [Client(k, 100 + 10 * k) for k in range(options.clients)]
    model = {key: value.detach().clone() for key, value in task.model_state().items()}
    uploads = [
        Upload(
            client,
            {
                key: value + 0.01 * torch.randn(value.shape) if value.is_floating_point() else value
                for key, value in model.items()
            },
        )
        for client in clients
    ]
    keys = sorted(f"model/{name}" for name, _ in task.model.named_parameters())
    results = []
    for steps in options.steps:
        method = FedAWA(server_steps=steps)
        server = model | method.init_server(task, clients)
        direct_seconds, matrix_seconds = [], []
        for _ in range(3):
            start = time.process_time()
            expected = direct(method, server, uploads, keys)
            direct_seconds.append(time.process_time() - start)
            start = time.process_time()
            logits = method._solve(server, uploads)[1]
            matrix_seconds.append(time.process_time() - start)
        torch.testing.assert_close(logits, expected, rtol=0, atol=5e-5)  # the direct form has float32's digits
        slow, fast = min(direct_seconds), min(matrix_seconds)
        print(
            f"{steps} steps, {options.clients} clients, {options.backbone}: direct {slow:.3f} s, matrix {fast:.3f} s "
            "of CPU"
        )
        results.append(
            report(
                f"speed-up over the direct form at {steps} steps",
                slow / fast,
                0.5 if steps == 1 else 5.0,
                at_most=False,
                unit=" x",
            )
        )
    finish(results)


if __name__ == "__main__":
    main()
