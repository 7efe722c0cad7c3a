"""Counting with a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.datasets.load import load
from penstock.errors import UserError
from penstock.settings.schema import ConversationSettings, InputSettings, TokenizerSettings
from penstock.tokens.chat_template import ChatTokenizer, with_chat_template
from penstock.tokens.huggingface import read_tokenizer_json
from penstock.tokens.lazy_tokenizer import LazyTokenizer
from penstock.tokens.tiktoken_vocabulary import open_builtin
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import conversations_of

USER = {"role": "user", "content": "Hello there"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}{{ '>' * add_generation_prompt }}"
)


@pytest.fixture(scope="module")
def qwen() -> ChatTokenizer:
    return with_chat_template(open_builtin(), "builtin", "main")


def words(folder: Path) -> Tokenizer:
    """Return a tokenizer with one token for each word, and write its file."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, pre_tokenizers

    inner = Inner(models.WordLevel({"<s>": 0, "?": 1}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<s>"])
    path = folder / "tokenizer.json"
    inner.save(str(path))
    return read_tokenizer_json(path.read_bytes(), str(folder), "folder")


def test_template_of_qwen_adds_eight_tokens_to_a_message(qwen: ChatTokenizer) -> None:
    text = qwen.render([USER])
    assert text == "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    assert qwen.count(text) == 8 + qwen.count("Hello there")
    assert qwen.added_tokens("user") == 8
    assert qwen.added_tokens("system", "user") == 13
    assert qwen.count_many(["", "a<|im_end|>b"]) == [0, 3]


def test_qwen_2_5_adds_its_system_prompt() -> None:
    tokenizer = LazyTokenizer(
        TokenizerSettings(name="Qwen/Qwen2.5-7B-Instruct", apply_chat_template=True), "m"
    ).get_chat()
    assert "You are Qwen" in tokenizer.render([USER])
    assert "You are Qwen" not in tokenizer.render([{"role": "system", "content": "Be brief."}, USER])


@pytest.mark.parametrize("place", ["jinja", "config", "named"])
def test_template_is_read_from_the_folder_of_the_tokenizer(tmp_path: Path, place: str) -> None:
    inner = words(tmp_path)
    config: dict[str, object] = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    if place == "jinja":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    else:
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
        config["chat_template"] = TEMPLATE if place == "config" else named
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    chat = with_chat_template(inner, str(tmp_path), "main")
    parts = [
        {"type": "text", "text": "Hello"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "there"},
    ]
    assert chat.render([{"role": "user", "content": parts}]) == "<s>[user] Hello\nthere >"
    assert chat.count(chat.render([USER])) == 5


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ tools | tojson }}", '[{"name": "é<"}]'),
        ("{{ tools[0] | tojson(indent=2) }}", '{\n  "name": "é<"\n}'),
        ("{{ messages[0].role }}\n", "user"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
    ],
)
def test_template_renders_like_that_of_the_transformers_package(qwen: ChatTokenizer, template: str, text: str) -> None:
    chat = ChatTokenizer(qwen, template, {})
    assert chat.render([USER], [{"name": "é<"}]) == text


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "neither chat_template.jinja nor tokenizer_config.json has one"),
        ("[", "its tokenizer_config.json is not valid"),
        ('{"chat_template": "{% for %}"}', "it is not a valid Jinja template"),
        ('{"chat_template": "{{ raise_exception(\'no user\') }}"}', "does not take these messages (no user)"),
    ],
)
def test_tokenizer_without_a_usable_template_is_refused(tmp_path: Path, config: str | None, reason: str) -> None:
    inner = words(tmp_path)
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(UserError) as caught:
        with_chat_template(inner, str(tmp_path), "main").render([USER])
    assert reason in str(caught.value)
    assert "--apply-chat-template" in str(caught.value)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_synthetic_prompts_have_the_requested_length_with_the_template(qwen: ChatTokenizer, system: str | None) -> None:
    settings = InputSettings(seed=1, input_tokens_mean=60, input_tokens_stddev=10, system=system)
    for each in conversations_of(load(settings, 20, lambda: qwen)):
        first = [] if each.system is None else [{"role": "system", "content": each.system}]
        rendered = qwen.render([*first, {"role": "user", "content": each.turns[0].texts[0]}])
        assert each.turns[0].input_tokens == qwen.count(rendered)
    exact = conversations_of(load(InputSettings(seed=1, input_tokens_mean=50), 5, lambda: qwen))
    assert [each.turns[0].input_tokens for each in exact] == [50] * 5
    several = InputSettings(seed=1, input_tokens_mean=50, conversation=ConversationSettings(turns_mean=2))
    assert {
        qwen.count(turn.texts[0]) for each in conversations_of(load(several, 3, lambda: qwen)) for turn in each.turns
    } == {42}


def test_prompt_that_is_shorter_than_the_template_is_refused(qwen: ChatTokenizer) -> None:
    with pytest.raises(UserError, match="adds 8 tokens to a request, so a prompt of 8"):
        conversations_of(load(InputSettings(seed=1, input_tokens_mean=8), 5, lambda: qwen))
