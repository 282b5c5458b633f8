"""Training data: what is a target, what is held out, and losses over targets that differ in number among ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from mlsys_lab.comm import Rank, run
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.inference.pretrained import FOLDER, TOKENIZER, read_text
from mlsys_lab.inference.text import BookTokenizer, Message, Tokenizer, load_tokenizer
from mlsys_lab.inference.text.chat import END
from mlsys_lab.models import training
from mlsys_lab.parallel.train import Trainer
from mlsys_lab.parallel.train.data import (
    chat_dataset,
    encode_conversation,
    read_conversations,
    read_documents,
    text_dataset,
)
from mlsys_lab.parallel.train.sequences import IGNORED, Sequences
from tests.inference.huggingface_folder import CHATML, save_llama, save_qwen
from tests.parallel.train.test_trainer import CONFIG, MIXTURE, PLAN, UNEVEN, make_model

BOOK = BookTokenizer(Tokenizer.load(FOLDER / TOKENIZER))
CHAT = [
    Message("system", "Be brief."),
    Message("user", "What is a cache?"),
    Message("assistant", "It saves work."),
    Message("user", "How?\n\nnaïve 你好"),
    Message("assistant", "  By keys and values. "),
]
MARKED = {
    save_qwen: "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}"
    "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    save_llama: "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ ' ' + m.content + eos_token }}{% endgeneration %}{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}"
    "{% endfor %}",
}
"""Templates with marks, by which transformers knows the assistant's tokens."""


@pytest.mark.parametrize("write", [save_qwen, save_llama], ids=["qwen2", "llama"])
def test_targets_are_the_tokens_that_transformers_says_the_assistant_generates(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = write(tmp_path)
    (folder / "chat_template.jinja").write_text(MARKED[write])
    expected = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        [one._asdict() for one in CHAT], return_dict=True, return_assistant_tokens_mask=True
    )
    ((ids, is_target),) = encode_conversation(load_tokenizer(folder), CHAT)
    assert ids == expected["input_ids"]
    assert is_target == [bool(one) for one in expected["assistant_masks"]]


def test_the_course_s_chat_has_answers_and_their_end_as_targets() -> None:
    ((ids, is_target),) = encode_conversation(BOOK, CHAT)
    answers = [CHAT[2].content, CHAT[4].content]
    end = BOOK.tokenizer.special_id(END)
    assert [one for one, counted in zip(ids, is_target, strict=True) if counted] == [
        token for text in answers for token in [*BOOK.tokenizer.encode(text), end]
    ]
    assert ids[: len(BOOK.encode_chat(CHAT[:4]))] == BOOK.encode_chat(CHAT[:4])


def test_a_template_that_renders_earlier_turns_differently_gives_a_sequence_for_each_rendering(tmp_path: Path) -> None:
    folder = save_qwen(tmp_path)
    earlier = "message['role'] == 'assistant' and not loop.last"
    content = f"(message['content'] | upper if {earlier} else message['content'])"
    (folder / "chat_template.jinja").write_text(CHATML.replace("message['content']", content))
    sequences = list(encode_conversation(load_tokenizer(folder), CHAT))
    tokenizer = load_tokenizer(folder)
    for (ids, is_target), number in zip(sequences, (3, 5), strict=True):
        prompt = tokenizer.encode_chat(CHAT[: number - 1])
        assert ids[: len(prompt)] == prompt and not any(is_target[: len(prompt)])
        answer = [one for one, counted in zip(ids, is_target, strict=True) if counted]
        assert b"".join(map(tokenizer.token_bytes, answer)).decode() == CHAT[number - 1].content


def test_sequences_of_one_conversation_are_not_divided_between_training_and_validation(tmp_path: Path) -> None:
    folder = save_qwen(tmp_path)
    earlier = "message['role'] == 'assistant' and not loop.last"
    content = f"(message['content'] | upper if {earlier} else message['content'])"
    (folder / "chat_template.jinja").write_text(CHATML.replace("message['content']", content))
    chats = [[Message("user", f"Name {letter}"), CHAT[2], *CHAT[3:]] for letter in "abcdefgh"]
    data = chat_dataset(load_tokenizer(folder), chats, 100, print)
    assert isinstance(data.train, Sequences) and (len(data.train), len(data.validation)) == (14, 2)
    prompt = load_tokenizer(folder).encode_chat(chats[4][:1])
    assert [row[: len(prompt)].tolist() == prompt for row in data.validation.inputs] == [True, True]


def test_documents_follow_the_token_that_ends_another(tmp_path: Path) -> None:
    texts = ["One text. " * 30, "naïve 你好 " * 40]
    for tokenizer, first, last in (
        (BOOK, [BOOK.tokenizer.special_id(END)], []),
        (load_tokenizer(save_qwen(tmp_path / "qwen")), [], [2]),
        (load_tokenizer(save_llama(tmp_path / "llama")), [1], [2]),
    ):
        data = text_dataset(tokenizer, texts, 7)
        plain = [tokenizer.encode_prompt(text)[len(first) :] for text in texts]
        joined = np.array([token for ids in plain for token in [*first, *ids, *last]])
        assert isinstance(data.train, np.ndarray)
        kept = len(data.train) + data.validation.inputs.size
        assert 0.9 * len(joined) < kept <= len(joined)
        assert joined.tolist()[: len(data.train) // 20] == data.train.tolist()[: len(data.train) // 20]
        pairs = set(zip(joined[:-1].tolist(), joined[1:].tolist(), strict=True))
        held_out = zip(data.validation.inputs.ravel().tolist(), data.validation.targets.ravel().tolist(), strict=True)
        assert set(held_out) <= pairs


def test_held_out_text_is_not_trained_on_and_its_bytes_are_counted() -> None:
    text = read_text("calibration")[:20_000]
    data = text_dataset(BOOK, [text], 32)
    assert isinstance(data.train, np.ndarray)
    trained, held_out = BOOK.tokenizer.decode(data.train.tolist()), data.validation
    for inputs, targets in zip(held_out.inputs, held_out.targets, strict=True):
        assert inputs[1:].tolist() == targets[:-1].tolist()
        assert BOOK.tokenizer.decode(targets.tolist()) not in trained
    num_bytes = len(b"".join(BOOK.token_bytes(int(one)) for one in held_out.targets.ravel()))
    assert data.bits_per_byte(2.0) == pytest.approx(2.0 / math.log(2) * held_out.targets.size / num_bytes)


def test_long_conversations_are_cut_and_short_ones_padded() -> None:
    long = [Message("user", "Why? " * 30), Message("assistant", "So.")]
    said: list[str] = []
    data = chat_dataset(BOOK, [CHAT, long, CHAT, CHAT], 80, said.append)
    assert said == ["1 of 4 conversations are longer than 80 tokens and were cut"]
    ((ids, is_target),) = encode_conversation(BOOK, CHAT)
    assert isinstance(data.train, Sequences)
    assert len(data.train) == 2 and len(data.validation) == 1
    for row in range(2):
        assert data.train.inputs[row, : len(ids)].tolist() == ids
        counted = [one if is_one else IGNORED for one, is_one in zip(ids[1:], is_target[1:], strict=True)]
        assert data.train.targets[row].tolist() == counted + [IGNORED] * (80 - len(counted))


def random_sequences(number: int, seed: int) -> Sequences:
    """Sequences of random tokens, of which the loss counts 1 to all."""
    rng = np.random.default_rng(seed)
    inputs, targets = rng.integers(CONFIG.vocab_size, size=(2, number, PLAN.seq_len))
    first = rng.integers(PLAN.seq_len, size=(number, 1))
    return Sequences(inputs, np.where(np.arange(PLAN.seq_len) < first, IGNORED, targets))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(data=2, context=2, tensor=2, zero_stage=1, micro_batch=2),
        Layout(data=2, pipeline=2, interleave=2, zero_stage=3),
        Layout(data=4, expert=2),
    ],
    ids=["data × context × tensor", "interleaved, ZeRO 3", "experts"],
)
def test_every_counted_token_weighs_as_much_in_any_layout(layout: Layout) -> None:
    config = MIXTURE if layout.expert > 1 else UNEVEN
    data, held_out = random_sequences(21, 0), random_sequences(5, 1)

    def train(rank: Rank, _: None) -> tuple[list[float], float]:
        trainer = Trainer(make_model(config), data, PLAN, layout, rank)
        losses = []
        for _ in range(3):
            trainer.evaluate(held_out)  # changes nothing
            losses.append(trainer.step())
        return losses, trainer.evaluate(held_out)

    model = make_model(config)
    optimizer = torch.optim.AdamW(model.parameters(), betas=training.BETAS, weight_decay=training.WEIGHT_DECAY)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    alone = []
    batches = training.Batches(len(data) + 1, PLAN.batch_size, 1, PLAN.seed)
    for step, rows in zip(range(1, 4), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(step, PLAN.steps, PLAN.lr)
        optimizer.zero_grad()
        value = loss(*data[rows])
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.GRADIENT_NORM)
        optimizer.step()
        alone.append(value.item())
    expected = loss(*held_out[:]).item()
    for losses, evaluated in run(train, [None] * layout.devices).results:
        assert losses == pytest.approx(alone, rel=1e-11)
        assert evaluated == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"messages": [{"role": "user"}]}', r":1 has no 'content': got .*, expected an object with 'content'"),
        ('\n{"text": "x"}', r":2 has no 'messages'"),
        ("[1]", r":1 has no 'messages': got \[1\]"),
        ("{", r":1 is not JSON: got Expecting property name"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(content)
    with pytest.raises(InputError, match=said) as raised:
        read_conversations(tmp_path / "chat.jsonl")
    assert "\n" not in str(raised.value)


def test_documents_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text, "id": 3}) for text in ("one", "two\u2028")))
    (tmp_path / "b.txt").write_text("three\n")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    assert read_documents(tmp_path / "a.jsonl") == ["one", "two\u2028"]
    assert read_documents(tmp_path / "b.txt") == ["three\n"]
    with pytest.raises(InputError, match=r"c\.txt is not UTF-8: got byte 0xff"):
        read_documents(tmp_path / "c.txt")


def test_what_cannot_be_learnt_from_is_one_line() -> None:
    with pytest.raises(InputError, match="conversation 2: unknown role in the conversation: got robot"):
        chat_dataset(BOOK, [CHAT, [Message("robot", "x"), CHAT[2]]], 80, print)
    with pytest.raises(InputError, match="too few conversations: got 1 with a token of the assistant in the first 31"):
        chat_dataset(BOOK, [CHAT[:3], CHAT[:2], [Message("user", "x" * 100), CHAT[2]]], 30, print)
    with pytest.raises(InputError, match="too little text: got 2 tokens, expected at least 170"):
        text_dataset(BOOK, ["a"], 16)
