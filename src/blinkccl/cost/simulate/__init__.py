"""The simulator: event kernel, link model, calibrations, chunk search, fits and timeline."""
