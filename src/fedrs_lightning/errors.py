"""Errors that a person can act on.

The command line prints any `FedrsError` as one line and ends with exit code 2; everything else is a defect of this
software and keeps its traceback.
"""


class FedrsError(Exception):
    """Something the user can repair: the message says what is wrong, where, and what to do."""


class ConfigError(FedrsError):
    """A key, type or value of the configuration."""


class DataError(FedrsError):
    """A data folder, file, raster or label."""


class RunError(FedrsError):
    """A run directory, checkpoint or client memory."""


class LostContact(RunError):
    """Another rank is gone, and this one does not know why."""


class TrainingError(FedrsError):
    """Training went wrong on a named client and round, for example a loss that is not finite."""
