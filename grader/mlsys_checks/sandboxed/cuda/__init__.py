"""The learner's side of lab 03: kernels launched and recorded, predictions asked for."""
