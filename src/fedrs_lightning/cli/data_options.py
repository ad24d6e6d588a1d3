"""The data sets that `fedrs data` knows by a short name."""

DATASETS = ("eurosat", "potsdam", "vaihingen", "loveda", "bigearthnet")
