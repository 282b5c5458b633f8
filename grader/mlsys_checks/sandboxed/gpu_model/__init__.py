"""The sandboxed side of lab 02: counts and models asked for, a timing loop run on a made-up clock, kernels recorded."""
