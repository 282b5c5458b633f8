"""Requests in OpenAI's format, validated field by field.

A field that would change the answer and is not supported is an error, never ignored. `null` counts as absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert, field, structs, to_builtins

from mlsys_lab.inference.server.chat_fields import (
    NO_PARAMETERS,
    JsonObjectFormat,
    JsonSchemaFormat,
    Messages,
    NamedToolChoice,
    ResponseFormat,
    StructuredOutputs,
    TextFormat,
    ToolChoice,
    Tools,
)
from mlsys_lab.inference.server.errors import ApiError, bad_request
from mlsys_lab.inference.server.grammars import choice_grammar, json_grammar, regex_grammar, tool_call_grammar
from mlsys_lab.inference.server.messages import GenerateRequest
from mlsys_lab.inference.text.interface import ChatTokenizer

MODEL = "mlsys-lab-target"
"""Name of the model that comes with the course."""
MAX_N, MAX_STOPS, MAX_STOP_CHARACTERS, MAX_ECHOED_CHARACTERS = 8, 4, 100, 40
MAX_PROMPTS, MAX_TOP_LOGPROBS = 64, 20
MAX_TOKENS = 2**31 - 1
"""Largest `max_tokens`, and largest token id."""
NEUTRAL: dict[str, object] = {
    "add_special_tokens": True,
    "best_of": 1,
    "length_penalty": 1.0,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "suffix": "",
    "use_beam_search": False,
}
"""Unsupported fields, each with the one value that changes nothing."""
IGNORED = ("metadata", "priority", "store", "user")
"""Fields that change no answer."""

Flag = Annotated[bool, Meta(description="true or false")]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
TokenCount = Annotated[int, Meta(ge=1, le=MAX_TOKENS, description=f"a whole number, 1 to {MAX_TOKENS}")] | None
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS, description=f"0 to {MAX_TOP_LOGPROBS}")] | None
Penalty = Annotated[float, Meta(ge=-2, le=2, description="-2 to 2")]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[
    StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)],
    Meta(description=f"a string or up to {MAX_STOPS}, of 1 to {MAX_STOP_CHARACTERS} characters each"),
]
Prompt = Annotated[
    str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)],
    Meta(description=f"text or a list of token ids, or a list of up to {MAX_PROMPTS} of either"),
]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream; vLLM's `continuous_usage_stats`, a usage in each chunk, may only be false."""

    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False


class ApiRequest(Struct, frozen=True, kw_only=True):
    """Fields of completions and chats; a field's description is what its error message says was expected.

    `top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`, `ignore_eos` and `structured_outputs` are vLLM's
    additions, and so is `response_format` of a completion.
    """

    model: Annotated[str, Meta(description="the name of a model")]
    n: Annotated[int, Meta(ge=1, le=MAX_N, description=f"1 to {MAX_N}")] = 1
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 to 2")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="above 0, at most 1")] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS, description="a whole number; 0 and -1 keep all tokens")] = 0
    min_p: Annotated[float, Meta(ge=0, le=1, description="0 to 1")] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, description="above 0")] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[dict[str, float], Meta(description="an object of numbers by token id")] = field(
        default_factory=dict
    )
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="a whole number from 0, of 63 bits")] | None = None
    stop: StopStrings = field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Meta(description="a list of token ids")] = field(default_factory=list)
    ignore_eos: Flag = False
    response_format: ResponseFormat = TextFormat()
    structured_outputs: Annotated[
        StructuredOutputs, Meta(description="an object with regex, a text, or choice, a list of texts")
    ] = StructuredOutputs()
    stream: Flag = False
    stream_options: Annotated[StreamOptions, Meta(description="an object with include_usage, true or false")] = (
        StreamOptions()
    )

    def encode(self, tokenizer: ChatTokenizer) -> list[list[int]]:
        """Token ids of each prompt; InputError for what the tokenizer refuses."""
        raise NotImplementedError

    def grammars(self) -> list[str]:
        """Grammars that the output has to follow."""
        found = []
        match self.response_format:
            case JsonObjectFormat():
                found.append(json_grammar({"type": "object"}))
            case JsonSchemaFormat(json_schema):
                found.append(json_grammar(json_schema.schema))
        if self.structured_outputs.choice:
            found.append(choice_grammar(self.structured_outputs.choice))
        if self.structured_outputs.regex is not None:
            found.append(regex_grammar(self.structured_outputs.regex))
        return found

    def to_engine(self, prompts: list[list[int]], adapter: str | None) -> GenerateRequest:
        """Request for the engine, which gives it its id; ApiError for fields that contradict each other."""
        grammars = self.grammars()
        if len(grammars) > 1:
            raise bad_request("the output is limited twice, expected one of response_format, tools, structured_outputs")
        if grammars and (self.stop or self.stop_token_ids or self.ignore_eos):
            raise bad_request("stop, stop_token_ids and ignore_eos do not go with an output that has a format")
        # Greedy sampling draws nothing: a seed and filters would have no effect.
        is_greedy = self.temperature == 0
        return GenerateRequest(
            0,
            prompts,
            n=self.n,
            temperature=self.temperature,
            top_k=self.top_k if self.top_k > 0 and not is_greedy else None,
            top_p=None if is_greedy else self.top_p,
            min_p=self.min_p if self.min_p and not is_greedy else None,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_read_bias(self.logit_bias),
            seed=None if is_greedy else self.seed,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            grammar=grammars[0] if grammars else None,
            adapter=adapter,
        )


class CompletionRequest(ApiRequest, frozen=True, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: Prompt
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS, description=f"a whole number, 0 to {MAX_TOKENS}")] | None = 16
    logprobs: TopLogprobs = None
    echo: Flag = False

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts one by one, as texts or token ids; ApiError for a list of neither."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(one, int) for one in self.prompt):
            return [self.prompt]  # type: ignore[return-value]
        kinds = {type(one) for one in self.prompt}
        if len(kinds) > 1 or int in kinds or not all(self.prompt) or len(self.prompt) > MAX_PROMPTS:
            raise bad_request(f"prompt: got {shorten(self.prompt)}, expected {_expected(Prompt)}", "prompt")
        return self.prompt  # type: ignore[return-value]

    def encode(self, tokenizer: ChatTokenizer) -> list[list[int]]:
        """Token ids of each prompt."""
        return [one if isinstance(one, list) else tokenizer.encode_prompt(one) for one in self.prompts]

    def to_engine(self, prompts: list[list[int]], adapter: str | None) -> GenerateRequest:
        """Request for the engine, which gives it its id."""
        return structs.replace(
            super().to_engine(prompts, adapter),
            max_tokens=self.max_tokens,
            num_logprobs=self.logprobs,
            prompt_logprobs=self.echo and self.logprobs is not None,
        )


class ChatCompletionRequest(ApiRequest, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`; `max_completion_tokens` is the newer name of `max_tokens`.

    With `tools`, calls in Hermes' format become `tool_calls`; a call that `tool_choice` requires is the whole output,
    and at `max_tokens` it ends with part of its arguments.
    Without `parallel_tool_calls` all calls but the first are dropped.
    """

    messages: Messages
    tools: Tools = field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: Flag = True
    max_tokens: TokenCount = None
    max_completion_tokens: TokenCount = None
    logprobs: Flag = False
    top_logprobs: TopLogprobs = None

    def encode(self, tokenizer: ChatTokenizer) -> list[list[int]]:
        """Token ids of the conversation, in which the chat template describes the tools."""
        tools = to_builtins(self.tools if self.uses_tools else [])
        return [tokenizer.encode_chat([one.for_template() for one in self.messages], tools)]

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    def grammars(self) -> list[str]:
        """Grammars that the output has to follow; ApiError for a choice of a tool that is not there."""
        found, choice = super().grammars(), self.tool_choice
        parameters = {
            one.function.name: NO_PARAMETERS if one.function.parameters is None else one.function.parameters
            for one in self.tools
        }
        if isinstance(choice, NamedToolChoice):
            name = choice.function.name
            if name not in parameters:
                raise bad_request(f"tool_choice: got {shorten(name)}, which is not one of the tools", "tool_choice")
            return [*found, tool_call_grammar({name: parameters[name]})]
        if choice == "required":
            if not parameters:
                raise bad_request("tool_choice: got 'required', but there are no tools", "tool_choice")
            return [*found, tool_call_grammar(parameters)]
        if found and self.uses_tools:
            text = "an output of a format cannot be a call, expected tool_choice 'none' or no response_format"
            raise bad_request(text, "tool_choice")
        return found

    def to_engine(self, prompts: list[list[int]], adapter: str | None) -> GenerateRequest:
        """Request for the engine, which gives it its id."""
        return structs.replace(
            super().to_engine(prompts, adapter),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """Body of `/tokenize`: a text as a completion's prompt, or a conversation."""

    model: Annotated[str, Meta(description="the name of a model")] | None = None
    prompt: Annotated[str, Meta(description="text")] | None = None
    messages: Messages | None = None

    def encode(self, tokenizer: ChatTokenizer) -> list[list[int]]:
        """Token ids of the text or the conversation, alone in a list."""
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("expected either prompt or messages", "prompt")
        if self.messages is None:
            return [tokenizer.encode_prompt(self.prompt or "")]
        return [tokenizer.encode_chat([one.for_template() for one in self.messages])]


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Body of `/detokenize`."""

    tokens: Annotated[list[TokenId], Meta(description="a list of token ids")]
    model: Annotated[str, Meta(description="the name of a model")] | None = None


def _read_bias(biases: dict[str, float]) -> list[tuple[int, float]]:
    """Biases by token id; ApiError for a key that is not one."""
    for key in biases:
        if not key.isascii() or not key.isdigit():
            raise bad_request(f"logit_bias: got the key {shorten(key)}, expected token ids", "logit_bias")
    return [(int(key), value) for key, value in biases.items()]


R = TypeVar("R", bound=Struct)


def parse_request(body: object, request_type: type[R], models: Sequence[str] = (MODEL,)) -> R:
    """Validate a body; ApiError that names the first invalid field, or a model that is not one of `models`."""
    if not isinstance(body, dict):
        raise bad_request("the body is not a JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    hints = get_type_hints(request_type, include_extras=True)
    for name, value in fields.items():
        if name in hints:
            try:
                convert(value, hints[name])
            except ValidationError:
                message = f"{name}: got {shorten(value)}, expected {_expected(hints[name])}"
                raise bad_request(message, name) from None
        elif name in NEUTRAL:
            if value != NEUTRAL[name]:
                raise bad_request(f"{name} is not supported: got {shorten(value)}", name)
        elif name not in IGNORED:
            raise bad_request(f"unknown field: got {shorten(name)}")
    for info in structs.fields(request_type):
        if info.required and info.name not in fields:
            raise bad_request(f"{info.name} is missing, expected {_expected(hints[info.name])}", info.name)
    request = convert(fields, request_type)
    if fields.get("model", models[0]) not in models:
        raise model_not_found(fields["model"], models)
    return request


def _expected(hint: Any) -> str:
    """Description of an annotated type, which may be optional."""
    annotated = hint if hasattr(hint, "__metadata__") else get_args(hint)[0]
    return str(annotated.__metadata__[0].description)


def model_not_found(model: str, models: Sequence[str]) -> ApiError:
    """Error 404: neither the model that is served nor one of its adapters."""
    expected = ", ".join(map(ascii, models))
    text = f"no such model: got {shorten(model)}, expected {'one of ' if len(models) > 1 else ''}{expected}"
    return ApiError(HTTPStatus.NOT_FOUND, text, param="model", code="model_not_found")


def shorten(value: object) -> str:
    """Representation of a value that a client sent: ASCII, on one line, cut to `MAX_ECHOED_CHARACTERS`."""
    text = ascii(value)
    return text if len(text) <= MAX_ECHOED_CHARACTERS else f"{text[:MAX_ECHOED_CHARACTERS]}…"
