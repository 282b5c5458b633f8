"""HTTP server of the bundled model with an OpenAI-compatible API; needs the extra `serve`.

Two processes: one serves HTTP and never imports torch, the other runs `engine`. They exchange lines of JSON over pipes.

A request's way:

app               routes, API key, Host check; Starlette
connection        uvicorn's HTTP/1.1 protocol with time limits for clients
body              JSON bodies, limited in size and time
protocol          CompletionRequest, ChatCompletionRequest: validation; msgspec
chat_fields       messages, tools and formats, the fields of a chat that are objects
grammars          the grammar of a JSON schema, or of a call of a function
engine_process    EngineProcess: submits requests to the worker, dispatches its outputs, restarts it after a crash
messages          what the two processes send each other; msgspec
worker            the engine's process: commands in, one step, events out
response          a response whole or as server-sent events; sse-starlette
tool_calls        ToolCallParser: calls of functions in a chat's text
response_objects  completions, chats and chunks in OpenAI's format
errors            ApiError: an HTTP status and its error object

Next to it:

metrics           metrics for Prometheus, named as in vLLM; prometheus_client
snapshot          SnapshotRecorder: sequences, steps and blocks of a watched engine
watchers          streams of snapshots to watchers (GET /watch)
page              the page at /, with a chat and a view of the engine; its files are in `site`
ray_engine        RayEngine: replicas of the engine as a Ray Serve deployment
prefix_router     PrefixRouter: Ray Serve's router, by `prefix`
images            /v1/images/generations: digits of the small diffusion model, in a third process
serve             serve(config): both processes, until a signal and the last response
"""
