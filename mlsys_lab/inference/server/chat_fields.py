"""Fields of requests that are objects: messages, tools and formats of the output, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, ValidationError, field

from mlsys_lab.inference.server.errors import bad_request
from mlsys_lab.inference.text.interface import Message

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schema of the arguments of a function that names none."""


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """A part of a message's content; text is the only kind."""

    text: str


class FunctionCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A function's name, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call in an assistant's message."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates expect it: with the arguments as an object. ApiError if they are not one."""
        try:
            arguments = msgspec.json.decode(self.function.arguments, type=dict[str, Any])
        except (msgspec.DecodeError, ValidationError):
            text = f"messages: the arguments of the call {ascii(self.id)[:40]} are not a JSON object"
            raise bad_request(text, "messages") from None
        return {"id": self.id, "type": self.type, "function": {"name": self.function.name, "arguments": arguments}}


class ChatMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a conversation: only calls go without content, and that of a tool holds the result of a call."""

    role: str
    content: str | list[TextPart] | None = None
    name: Any = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    def __post_init__(self) -> None:
        if self.content is None and not self.tool_calls:
            raise ValueError("no content")  # which msgspec makes a ValidationError

    def for_template(self) -> Message:
        """The message with its content as one string; ApiError for a call whose arguments are no object."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return Message(self.role, text, [call.for_template() for call in self.tool_calls or ()])


Messages = Annotated[list[ChatMessage], Meta(description="a list of objects with role and content, both text")]
Name = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class Function(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


class FunctionName(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a function."""

    name: Name


class NamedToolChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model must call."""

    type: Literal["function"]
    function: FunctionName


Tools = Annotated[
    list[Tool],
    Meta(description="a list of {type: 'function', function: {name, description, parameters}}, parameters a schema"),
]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedToolChoice,
    Meta(description="'none', 'auto', 'required' or {type: 'function', function: {name}}"),
]


class JsonSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema with its name; outputs follow it with `strict` or without."""

    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextFormat(Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, frozen=True, forbid_unknown_fields=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, forbid_unknown_fields=True, tag="json_schema"):
    """JSON by a schema."""

    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat,
    Meta(description="{type: 'text'}, {type: 'json_object'} or {type: 'json_schema', json_schema: {name, schema}}"),
]


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's addition: one of several texts, or those that a regular expression matches as a whole."""

    choice: Annotated[list[str], Meta(min_length=1)] = field(default_factory=list)
    regex: Annotated[str, Meta(min_length=1)] | None = None
