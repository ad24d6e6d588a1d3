"""How fast the ordered float64 aggregation reads uploads, beside what `copy_` reaches on the same machine."""

from __future__ import annotations

import statistics
import time

import torch

from common import finish, report
from fedrs_lightning.states import weighted_sum

ELEMENTS, UPLOADS, TURNS = 25_600_000, 8, 7


def main() -> None:
    uploads = [torch.randn(ELEMENTS) for _ in range(UPLOADS)]
    weights = torch.rand(UPLOADS, dtype=torch.float64)
    weights /= weights.sum()
    target = torch.empty(ELEMENTS)
    ratios = []
    for turn in range(TURNS + 1):
        start = time.process_time()
        for upload in uploads:
            target.copy_(upload)
        copying = time.process_time() - start
        start = time.process_time()
        weighted_sum(uploads, weights)
        summing = time.process_time() - start
        if turn:
            ratios.append(copying / summing)
    print(
        f"{UPLOADS} uploads of {ELEMENTS / 1e6:.1f} M float32: copy {copying:.3f} s, aggregate {summing:.3f} s CPU "
        "(last turn)"
    )
    finish([report("rate of aggregation over rate of copy_", statistics.median(ratios), 0.5, at_most=False)])


if __name__ == "__main__":
    main()
