"""Federated learning on Earth-observation imagery with Lightning Fabric.

Importing the package loads no deep-learning library, so that `fedrs --help` answers at once.
"""

__version__ = "0.1.0"
