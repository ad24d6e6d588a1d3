"""Training steps with and without the allocator settings that the command line makes (cli/process.py), in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

STEP = """
import os, resource, sys, json
if sys.argv[1] == "set":
    from fedrs_lightning.cli.process import prepare_process
    prepare_process()
import torch, torchvision
torch.set_num_threads(1)
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
image, label = torch.randn(192, 3, 64, 64), torch.randint(0, 10, (192,))
def step():
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(image), label).backward()
    optimizer.step()
step()
before = resource.getrusage(resource.RUSAGE_SELF)
for _ in range(2):
    step()
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime]))
"""


def main() -> None:
    ratios = []
    for _ in range(5):
        times = {}
        for kind in ("set", "unset"):
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            answer = subprocess.run(
                [sys.executable, "-c", STEP, kind], env=environment, capture_output=True, text=True, check=True
            )
            times[kind] = json.loads(answer.stdout)
        ratios.append(sum(times["set"]) / sum(times["unset"]))
        print(
            f"user, system s: set {times['set'][0]:.2f} {times['set'][1]:.2f}, unset {times['unset'][0]:.2f} "
            f"{times['unset'][1]:.2f}"
        )
    print(
        f"CPU seconds with the settings over without (batch 192 of 64 x 64, ResNet-18): {statistics.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
