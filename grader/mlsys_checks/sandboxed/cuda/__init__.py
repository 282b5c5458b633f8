"""The sandboxed side of lab 03: kernels launched and recorded, predictions asked for."""
