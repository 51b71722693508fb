"""The memorySearch block becomes Settings, and what is wrong with it is said in one line."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_patch import config
from hermes_patch.config import Settings
from hermes_patch.embedders import profiles
from hermes_patch.errors import ConfigError

SERVER = {"model": "some-model", "remote": {"baseUrl": "https://embed.example/v1"}}


def server(**changes: Any) -> Settings:
    return config.parse({**SERVER, **changes})


def at(base_url: str) -> Settings:
    return config.parse({"model": "m", "remote": {"baseUrl": base_url}})


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a memorySearch block and a .env into a home and load it."""
    monkeypatch.delenv("EMBED_KEY", raising=False)

    def load(block: str, dotenv: str | None = None) -> Settings:
        inner = "".join(f"      {line}\n" for line in block.strip().splitlines())
        text = f"agents:\n  defaults:\n    memorySearch:\n{inner}"
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        if dotenv is not None:
            (tmp_path / ".env").write_text(dotenv, encoding="utf-8")
        return config.load(tmp_path)

    return load


# --- what is there without being said ---------------------------------------------------


@pytest.mark.parametrize("block", [None, {}, {"provider": "local"}, {"provider": None}])
def test_without_a_choice_the_embedded_model_is_used(block: Any) -> None:
    settings = config.parse(block)
    assert (settings.provider, settings.model) == ("local", profiles.LOCAL)
    known = profiles.PROFILES[profiles.LOCAL]
    assert (settings.dimensions, settings.min_similarity) == (896, known.floor)


def test_settings_made_by_hand_have_the_embedded_models_defaults() -> None:
    assert Settings(dimensions=896) == config.parse(None)


def test_a_home_without_a_config_has_the_defaults(tmp_path: Path) -> None:
    assert config.load(tmp_path) == config.parse(None)


@pytest.mark.parametrize("content", ["", "agents:", "agents: {defaults: }", "other: 1", "- a list"])
def test_a_config_without_the_block_has_the_defaults(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content, encoding="utf-8")
    assert config.load(tmp_path) == config.parse(None)


def test_doubao_needs_nothing_but_its_name() -> None:
    s = server(model="doubao-embedding-vision-250615")
    assert (s.dimensions, s.min_similarity, s.batch_size) == (2048, 0.40, 10)
    assert (s.pause, s.multimodal, s.send_dimensions) == (0.5, True, False)


def test_nomic_gets_its_prefixes_and_its_floor() -> None:
    s = server(model="nomic-embed-text:v1.5")
    assert (s.document_prefix, s.query_prefix) == ("search_document: ", "search_query: ")
    assert s.min_similarity == 0.58


@pytest.mark.parametrize(
    ("model", "query_prefix"),
    [
        ("intfloat/multilingual-e5-base", "query: "),
        ("BAAI/bge-large-zh-v1.5", "为这个句子生成表示以用于检索相关文章："),
        ("bge-base-en-v1.5", "Represent this sentence for searching relevant passages: "),
        ("google/embeddinggemma-300m", "task: search result | query: "),
        ("BAAI/bge-m3", ""),
        ("something-new", ""),
    ],
)
def test_each_model_family_gets_its_query_prefix(model: str, query_prefix: str) -> None:
    assert server(model=model).query_prefix == query_prefix


def test_the_longest_name_decides_the_profile() -> None:
    assert profiles.find("Doubao-Embedding-Vision").multimodal
    assert not profiles.find("doubao-embedding-large-text").multimodal


def test_what_is_set_wins_over_the_profile() -> None:
    s = server(model="nomic-embed-text", queryPrefix="", minSimilarity=0.1, dimensions=256)
    assert (s.query_prefix, s.min_similarity, s.dimensions) == ("", 0.1, 256)


def test_dimensions_are_sent_only_if_they_were_set() -> None:
    assert server(dimensions=256).send_dimensions
    assert not server(model="bge-m3").send_dimensions


def test_an_address_alone_chooses_the_server() -> None:
    assert server().provider == "openai"


def test_every_key_reaches_its_setting() -> None:
    s = config.parse(
        {
            "provider": "openai",
            "model": "m",
            "remote": {"baseUrl": "http://h:1/v1", "apiKey": " k\n"},
            "dimensions": 12,
            "minSimilarity": -0.5,
            "queryPrefix": "q",
            "documentPrefix": "d",
            "batchSize": 3,
            "pause": 1,
            "maxTokens": 100,
            "timeout": 7,
            "queryBudget": 0.5,
            "realtime": False,
            "roles": ["user", "tool"],
            "redact": False,
            "accelerate": True,
            "rrfK": 10,
            "weights": {"vector": 2},
        }
    )
    assert s == Settings(
        provider="openai",
        model="m",
        base_url="http://h:1/v1",
        api_key="k",
        dimensions=12,
        send_dimensions=True,
        floor_is_set=True,
        min_similarity=-0.5,
        query_prefix="q",
        document_prefix="d",
        batch_size=3,
        pause=1.0,
        max_tokens=100,
        timeout=7.0,
        query_budget=0.5,
        realtime=False,
        roles=("user", "tool"),
        redact=False,
        accelerate="true",
        rrf_k=10,
        weights=(1.0, 1.0, 2.0),
    )


# --- off --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["off", "'off'", "false", "no"])
def test_off_is_understood_although_yaml_reads_it_as_false(word: str) -> None:
    assert not config.parse(yaml.safe_load(f"provider: {word}")).enabled


def test_the_whole_block_may_be_off() -> None:
    assert not config.parse(yaml.safe_load("off")).enabled


def test_on_is_enabled() -> None:
    assert config.parse(None).enabled


# --- mistakes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("minSimilarty", "minSimilarity"),
        ("min_similarity", "minSimilarity"),
        ("batchsize", "batchSize"),
        ("Model", "model"),
        ("dimension", "dimensions"),
        ("baseUrl", "remote.baseUrl"),
        ("apikey", "remote.apiKey"),
        ("base_url", "remote.baseUrl"),
        ("remotes", "remote"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key!r}; did you mean {meant}\?"):
        config.parse({key: 1})


def test_an_unknown_key_under_remote_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"'remote.baseURI'; did you mean remote.baseUrl\?"):
        config.parse({"remote": {"baseURI": "http://h"}})


def test_a_key_that_is_like_nothing_gets_the_list_of_known_ones() -> None:
    with pytest.raises(ConfigError, match="known are provider, model"):
        config.parse({"xyzzy": 1})


def test_a_key_that_yaml_reads_as_a_boolean_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        config.parse(yaml.safe_load("on: 1"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("provider", "ollama"),
        ("provider", 5),
        ("model", ["m"]),
        ("model", ""),
        ("dimensions", 0),
        ("dimensions", 1.5),
        ("dimensions", "many"),
        ("minSimilarity", 2),
        ("minSimilarity", float("nan")),
        ("batchSize", True),
        ("timeout", 0),
        ("queryBudget", "5s"),
        ("realtime", "yes"),
        ("roles", "user"),
        ("roles", []),
        ("roles", ["robot"]),
        ("redact", 1),
        ("accelerate", "maybe"),
        ("weights", [1, 1, 1]),
        ("weights", {"fuzzy": 1}),
        ("weights", {"exact": -1}),
        ("remote", "http://h"),
        ("queryPrefix", 5),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"memorySearch.{key}"):
        server(**{key: value})


@pytest.mark.parametrize("block", ["local", 5, ["a"], True])
def test_a_block_that_is_no_mapping_is_refused(block: Any) -> None:
    with pytest.raises(ConfigError, match="expected a mapping"):
        config.parse(block)


def test_a_server_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="baseUrl"):
        config.parse({"provider": "openai", "model": "m"})


@pytest.mark.parametrize(
    "url", ["embed.example/v1", "ftp://h/v1", "http://", "http://h:port/v1", "http://[::1", "", "x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="baseUrl"):
        config.parse({"provider": "openai", "model": "m", "remote": {"baseUrl": url}})


def test_the_local_provider_has_its_own_models_only() -> None:
    with pytest.raises(ConfigError, match="e5-small-centred"):
        config.parse({"provider": "local", "model": "bge-m3"})


def test_the_local_models_have_the_dimensions_they_have() -> None:
    with pytest.raises(ConfigError, match="has 896"):
        config.parse({"provider": "local", "dimensions": 256})


def test_a_config_that_is_not_yaml_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1\nb: [\nc: }", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 3"):
        config.load(tmp_path)


def test_a_config_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        config.parse(None).model = "other"  # type: ignore[misc]


# --- variables --------------------------------------------------------------------------

KEYED = """
model: m
remote: {baseUrl: "https://h/v1", apiKey: "${EMBED_KEY}"}
"""


def test_a_variable_comes_from_the_homes_own_file_and_else_from_the_environment(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBED_KEY", "from-environment")
    assert write(KEYED, "EMBED_KEY=from-file").api_key == "from-file"
    assert write(KEYED, "OTHER=x").api_key == "from-environment"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("EMBED_KEY=abc", "abc"),
        ("export EMBED_KEY=abc", "abc"),
        ('EMBED_KEY="abc"', "abc"),
        ("EMBED_KEY='abc' # mine", "abc"),
        ("EMBED_KEY=abc # mine", "abc"),
        ("EMBED_KEY = a#b=c", "a#b=c"),
        ("# EMBED_KEY=no\nEMBED_KEY=abc", "abc"),
        ("\ufeffEMBED_KEY=abc", "abc"),
    ],
)
def test_a_variable_comes_from_dotenv(write: Any, line: str, value: str) -> None:
    assert write(KEYED, line).api_key == value


def test_a_variable_may_be_a_part_of_a_value(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_HOST", "embed.example")
    s = write('model: m\nremote: {baseUrl: "https://${EMBED_HOST}/v1"}')
    assert s.base_url == "https://embed.example/v1"


@pytest.mark.parametrize("dotenv", [None, "OTHER=1", "EMBED_KEY="])
def test_a_key_that_is_not_set_is_named(write: Any, dotenv: str | None) -> None:
    with pytest.raises(ConfigError, match="apiKey: the variable EMBED_KEY is not set"):
        write(KEYED, dotenv)


def test_an_address_whose_variable_is_not_set_is_named(write: Any) -> None:
    with pytest.raises(ConfigError, match="baseUrl: the variable EMBED_URL is not set"):
        write('model: m\nprovider: openai\nremote: {baseUrl: "${EMBED_URL}"}')


def test_the_local_provider_needs_no_key(write: Any) -> None:
    assert write('provider: local\nremote: {apiKey: "${EMBED_KEY}"}').provider == "local"


# --- secrets and hosts ------------------------------------------------------------------


def test_neither_key_nor_userinfo_is_shown() -> None:
    remote = {"baseUrl": "https://me:hunter22@h/v1", "apiKey": "sk-secret"}
    s = config.parse({"model": "m", "remote": remote})
    assert not [secret for secret in ("hunter22", "sk-secret", "me:") if secret in repr(s) + s.host]


def test_a_key_with_characters_no_key_has_is_refused_without_the_key() -> None:
    with pytest.raises(ConfigError, match="apiKey") as caught:
        config.parse({"model": "m", "remote": {"baseUrl": "http://h", "apiKey": "schlüssel"}})
    assert "schlüssel" not in str(caught.value)


@pytest.mark.parametrize("query", ["key=abc", "a=1&api_key=abc", "access_token=abc"])
def test_a_key_in_the_address_is_refused_without_the_key(query: str) -> None:
    with pytest.raises(ConfigError, match="apiKey") as caught:
        at(f"https://h/v1?{query}")
    assert "abc" not in str(caught.value)


def test_another_parameter_in_the_address_is_fine() -> None:
    assert at("https://h/v1?api-version=2024-02-01").host == "h"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:8080/v1", "127.0.0.1:8080"),
        ("https://u:p@Embed.Example/v1", "embed.example"),
        ("http://[::1]:81/v1", "[::1]:81"),
    ],
)
def test_the_host_is_shown_without_path_and_userinfo(url: str, host: str) -> None:
    assert at(url).host == host


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("embed.localhost", True),
        ("[::1]", True),
        ("0.0.0.0", True),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("192.168.1.5", False),
        ("10.0.0.1", False),
        ("embed.example", False),
    ],
)
def test_only_this_machine_is_loopback(name: str, stays: bool) -> None:
    assert at(f"http://{name}:8080/v1").is_loopback is stays


def test_the_local_provider_stays_on_this_machine() -> None:
    assert config.parse(None).is_loopback
    assert config.parse(None).host == ""


# --- the home ---------------------------------------------------------------------------


def test_the_home_is_the_one_named_else_the_variable_else_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HERMES_HOME", "/from/variable")
    assert config.hermes_home("/named") == Path("/named")
    assert config.hermes_home() == Path("/from/variable")
    monkeypatch.setenv("HERMES_HOME", " ")
    assert config.hermes_home() == Path.home() / ".hermes"
