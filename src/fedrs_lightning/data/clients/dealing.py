"""Which client of a domain trains on which crops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrs_lightning.data.clients.partition import cut
from fedrs_lightning.errors import ConfigError


def share_ground(tiles: Sequence[Sequence[str]], weights: Sequence[int], rng: np.random.Generator) -> list[list[str]]:
    """Give each tile of a terrain to one of the data sets that show it.

    Args:
        tiles: ids that each data set has; tiles that only some have go to one of those, and where shares
            are equal, a tile goes to the data set with fewest.
        weights: in whose proportion tiles are given, such as numbers of clients.
        rng: source of the permutation.

    Returns:
        Ids of each data set, disjoint.

    Raises:
        ConfigError: a data set is left without tile.
    """
    known = sorted({tile for own in tiles for tile in own})
    result: list[list[str]] = [[] for _ in tiles]
    for tile in (known[number] for number in rng.permutation(len(known))):
        able = [number for number, own in enumerate(tiles) if tile in own]
        poorest = min(
            able, key=lambda number: ((len(result[number]) + 1) / weights[number], len(tiles[number]), number)
        )
        result[poorest].append(tile)
    if not all(result):
        raise ConfigError(
            f"ground: disjoint needs a tile for each of {len(tiles)} domains of one terrain, got {len(known)}; set "
            "shared"
        )
    return [sorted(own) for own in result]


def deal_crops(tile: np.ndarray, proportions: Sequence[float], by: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal crops to clients, each client's crops in the order in which they may be trimmed from the end.

    Args:
        tile: number of each crop's tile, int [N].
        proportions: of the clients.
        by: `crop` deals single crops; `tile` deals whole tiles, each to the client that has fewest crops for its
            proportion, and keeps a client's tiles together, so that trimming takes whole tiles first.
        rng: source of the permutation.

    Returns:
        Positions into `tile`, disjoint.
    """
    if by == "crop":
        return cut(rng.permutation(len(tile)), np.asarray(proportions, dtype=np.float64))
    shares: list[list[np.ndarray]] = [[] for _ in proportions]
    sizes = [0] * len(proportions)
    for number in rng.permutation(np.unique(tile)):
        crops = np.flatnonzero(tile == number)
        poorest = min(range(len(sizes)), key=lambda client: ((sizes[client] + 1) / proportions[client], client))
        shares[poorest].append(crops)
        sizes[poorest] += len(crops)
    return [np.concatenate([np.empty(0, np.int64), *share]) for share in shares]
