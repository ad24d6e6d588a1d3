"""What is painted: scenes on a metric grid, spectra of materials, the sensor, and domain shift."""
