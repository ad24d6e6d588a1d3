"""BigEarthNet: patches and products, land cover, archive, and planted defects."""
