"""A server of the shipped model over HTTP, in the form of OpenAI's API; needs the extra `serve`.

Two processes: one speaks HTTP and never imports torch, the other runs `engine`. They exchange lines of JSON over pipes.

errors          ApiError: what a client is told, with its status
messages        what the two processes say to each other
worker          the engine's process: messages in, a step, messages out
engine_process  EngineProcess: starts the worker, sends requests, brings answers, begins anew where it crashed
protocol        read_completion, read_chat: a body, checked, as what is asked of the engine
body            a request's bytes, bounded in size and time, as JSON
objects         completions, chats and their chunks in OpenAI's form
events          server-sent events, and what is given up when a client has gone
reply           an answer sent whole or as events
view            Recorder: what the engine tells of its sequences, steps and blocks while somebody watches
watchers        who watches: views as events, up to ten a second (GET /watch)
page            the page at /, where one chats and watches; its files lie in the folder `site`
metrics         counts and times in Prometheus' format
app             routes, keys, errors
connection      a connection of a client that may stop in the middle of anything
prefix          which replica a request goes to first, by its beginning
prefix_router   PrefixRouter: Ray Serve's choice of a replica, by prefix
ray_engine      RayEngine: replicas of the engine as a deployment of Ray Serve, with the face of EngineProcess
serve           serve(settings): both processes, until a signal and the last answer
"""
