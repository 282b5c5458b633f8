"""Images of digits over HTTP: the small diffusion model that comes with the course, in a process of its own.

protocol  ImageRequest: a body of /v1/images/generations, validated
messages  what the two processes send each other
process   ImageProcess: starts the worker at the first request, and waits for its images
worker    `diffusion.engine.Engine`, driven by commands
"""
