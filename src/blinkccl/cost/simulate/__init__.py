"""How long would it take: event kernel, link model, calibration, NCCL as a model, timeline."""
