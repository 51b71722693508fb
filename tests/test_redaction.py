"""Secrets go, everything else stays."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_patch import deploy, redaction
from hermes_patch.redaction import MARK, redact
from targets import Installed

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
KEY_BLOCK = "\n".join(
    ["-----BEGIN RSA PRIVATE KEY-----", *[BODY] * 20, "q1w2e3==", "-----END RSA PRIVATE KEY-----"]
)
LETTERS = string.ascii_letters + string.digits


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefghijklmnopqrstuvwxyz012345",
        "sk-proj-a1_B2-c3d4e5f6g7h8",
        "sk-ant-api03-AbCdEf-123456",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "gho_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
        "glpat-abcdefghij0123456789",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
        "xoxb-123456789012-abcdefghijkl",
        "xoxp-123456789012-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSMeKKF2QT4fwpM",
        KEY_BLOCK,
        KEY_BLOCK.replace("RSA ", ""),
        KEY_BLOCK.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"),
        KEY_BLOCK.replace("\n", "\\n"),
        KEY_BLOCK.replace("\n", "\r\n"),
    ],
)
@pytest.mark.parametrize(
    "around", ["use {} now", "{}", "密钥{}在这里", '"{}",', "\n{}\n", "({})", "a={}", "x/{}/y"]
)
def test_a_secret_goes_and_the_words_around_it_stay(secret: str, around: str) -> None:
    assert redact(around.format(secret)) == around.format(MARK)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgres://u:p@h/db", "postgres://u:[redacted]@h/db"),
        ("postgresql+psycopg://a:b!c@h:5432/x", "postgresql+psycopg://a:[redacted]@h:5432/x"),
        ("redis://:pw@h", "redis://:[redacted]@h"),
        ("https://u:p@ss@host/x and more", "https://u:[redacted]@host/x and more"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic [redacted]"),
        ("-H 'Authorization: token abcdef12'", "-H 'Authorization: token [redacted]'"),
        ("bearer a1b2c3d4e5", "bearer [redacted]"),
        ("BEARER abcdefghijklmnopqrst==", "BEARER [redacted]"),
        ("api_key=abcd1234", "api_key=[redacted]"),
        ("OPENAI_API_KEY=abcdefgh", "OPENAI_API_KEY=[redacted]"),
        ("apikey: 'abcd 1234', then", "apikey: [redacted], then"),
        ('{"password": "hunter2"}', '{"password": [redacted]}'),
        ("password: hunter2", "password: [redacted]"),
        ("Password := hunter2", "Password := [redacted]"),
        ("DB_PASS=hunter2 next", "DB_PASS=[redacted] next"),
        ("aws_secret_access_key = wJalrXUtnFEMI", "aws_secret_access_key = [redacted]"),
        ("密码：hunter2", "密码：[redacted]"),
        ("密码: hunter2", "密码: [redacted]"),
        ("aUthOrization: Basic dXNlcjpwYXNz", "aUthOrization: Basic [redacted]"),
        ("bEaRER a1b2c3d4e5", "bEaRER [redacted]"),
        ("postgres://u:SECR/ETpw@host/db", "postgres://u:[redacted]@host/db"),
        ("https://u:p@host/x/@scope/pkg", "https://u:[redacted]@host/x/@scope/pkg"),
        (r'{"password": "a\"rest", "b": 1}', '{"password": [redacted], "b": 1}'),
        (r"password='a\'rest' b", "password=[redacted] b"),
        (r'"{\"password\": \"hunter2\", \"b\": 1}"', r'"{\"password\": [redacted], \"b\": 1}"'),
        ('password: "correct horse battery', "password: [redacted]"),
        (f'token="{"long " * 100}", then', "token=[redacted], then"),
        ("password:\n  hunter22", "password:\n  [redacted]"),
        ("password:\r\n\r\nhunter22\r\nuser: me", "password:\r\n\r\n[redacted]\r\nuser: me"),
        ("password: |\n  hunter22\nuser: me", "password: |\n  [redacted]\nuser: me"),
        ('{"token":\n  "correct horse",\n "a": 1}', '{"token":\n  [redacted],\n "a": 1}'),
        ("tool --password hunter --user me", "tool --password [redacted] --user me"),
        ("tool --db-password 'correct horse' x", "tool --db-password [redacted] x"),
        ("tool --token a1b2c3 x", "tool --token [redacted] x"),
        ("tool --API-KEY  a1b2c3", "tool --API-KEY  [redacted]"),
        ("Cookie: session=abc; token=def\nnext", "Cookie: [redacted]\nnext"),
        ("-H 'cookie: a=b; c=d' https://h/", "-H 'cookie: [redacted]' https://h/"),
        ('{"Cookie": "a=b; c=d", "e": 1}', '{"Cookie": "[redacted]", "e": 1}'),
        ('Set-Cookie: a="b c"; Path=/', "Set-Cookie: [redacted]"),
    ],
)
def test_a_value_goes_and_its_name_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words, nothing else",
        "sk-learn and sk-learn-based tools",
        "Bearer of bad news; the bearer certificates",
        "http://localhost:8080/a and mail me@example.org",
        "see https://example.org/a?b=c#d",
        "the password was changed yesterday",
        "password: ${DB_PASSWORD}",
        "passed: 100 tests",
        "primary key: 12345",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "eyJhbGciOiJIUzI1NiJ9 without dots",
        "-----BEGIN CERTIFICATE-----",
        "忘记密码怎么办",
        "it asks for a password:\nthen it stops",
        "Your new token:\n\nNobody else has it.",
        "the password:\n- is long\n- has 3 digits",
        "api_key:\n  port: 8080\n  name1:\n    x",
        "password:\n  ${DB_PASSWORD_1}",
        "use the --password option, or --token flags",
        "--password and --user; --token (see below)",
        "--password 选项是必须的",
        'tool --password "$PASSWORD" --token $TOKEN --secret <secret>',
        "--password-stdin reads it",
        "Cookie: a small sweet thing; cookies = 5",
        "https://example.org:8443/users/@me",
        "http://[::1]:8080/v1/@x and http://[fe80::1]/@y",
        "npm i @scope/pkg from https://registry.example.org/@scope/pkg",
        "İstanbul'da her şey yolunda",
    ],
)
def test_text_without_a_secret_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "part",
    [
        KEY_BLOCK[: len(KEY_BLOCK) // 2],
        KEY_BLOCK[len(KEY_BLOCK) // 2 :],
        "\n".join([BODY] * 3),
        "\\n".join([BODY] * 3),
    ],
    ids=["head", "tail", "middle", "escaped-middle"],
)
def test_a_part_of_a_private_key_goes_too(part: str) -> None:
    # A long message is cut into chunks before they are redacted.
    assert BODY not in redact(f"so:\n{part}")


def test_letters_that_change_their_length_in_lower_case_do_not_move_the_mark() -> None:
    assert redact("İİİ password: hunter2 İ") == "İİİ password: [redacted] İ"


def test_every_secret_in_a_text_goes() -> None:
    text = "a sk-abcdefghijklmnopqrstuvwxyz b ghp_abcdefghijklmnopqrstuv c password=hunter2 d"
    assert redact(text) == "a [redacted] b [redacted] c password=[redacted] d"


@given(
    st.lists(
        st.sampled_from(
            ["sk-", "ghp_", "eyJ", "Bearer ", "://", ":", "@", "password", "=", '"', "'", " ", "\n"]
            + ["Authorization: ", "-----BEGIN PRIVATE KEY-----", MARK, "a1b2c3d4e5f6g7h8", "."]
            + ["Cookie: ", "--token", "a=", ";", "/", "\\", "[", "|"]
        ),
        max_size=12,
    ).map("".join)
)
def test_what_was_redacted_stays_as_it_is(text: str) -> None:
    once = redact(text)
    assert redact(once) == once, once


@given(st.text(), st.text(alphabet=LETTERS, min_size=20, max_size=40))
def test_a_token_never_survives(before: str, secret: str) -> None:
    assert f"ghp_{secret}" not in redact(f"{before} ghp_{secret}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["a", "-", "sk-", "eyJ-", "eyJabcdefgh.", "://", "://a:", "A/", "Bearer ", "password: ", "\\n"]
    + ["-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY", 'password="aa', "api"]
    + ["authorization: a ", "A" * 64 + "\n", "A=", "://a@", "secret = ", "密码："]
    + ["--", "--a-", "--password ", "--password 'a", "cookie: a=", 'cookie: a="', "password:\n"]
    + ["password:\n a1", 'password="\\', 'secret=\\"', "://a:b/", "://:1", "://a:[", "token\n"]
    + ["\n ", "password: |", "cookie:", "--token\t", "\\'"],
)
def test_a_line_of_a_megabyte_is_no_trap(unit: str) -> None:
    # Quadratic time would be minutes here, linear time is well below a second.
    every_rule = " -----END PRIVATE KEY----- bearer authorization :// eyJ sk-"
    line = unit * (1_000_000 // len(unit)) + " ghp_abcdefghijklmnopqrstuvwxyz" + every_rule
    assert "ghp_abcdefghijklmnopqrstuvwxyz" not in redact(line)


@pytest.fixture
def second() -> Iterator[None]:
    yield
    redaction.use(None)


def test_a_second_redactor_sees_the_text_after_ours(second: None) -> None:
    seen = []

    def hide(text: str) -> str:
        seen.append(text)
        return text.replace("internal-name", "***")

    redaction.use(hide)
    assert redaction.redact("password=hunter22 on internal-name") == "password=[redacted] on ***"
    assert seen == ["password=[redacted] on internal-name"]


@pytest.mark.parametrize("answer", [None, 7, ValueError("broken")])
def test_a_second_redactor_that_fails_changes_nothing(second: None, answer: object) -> None:
    def fail(text: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    redaction.use(fail)
    assert redaction.redact("password=hunter22 here") == "password=[redacted] here"


def test_what_only_hermes_knows_as_a_secret_is_hidden_too(hermes: Installed, home: Path) -> None:
    """Its key forms are more than ours, and it may have learned new ones since."""
    secret = "fal_" + "4Zq81xWv0c7Yb2Nn5Mk9"
    code = (
        "import json, sys\n"
        "from hermes_patch import redaction\n"
        "from hermes_patch.upstream import redact\n"
        "text = sys.argv[1]\n"
        "ours = redaction.redact(text)\n"
        "redaction.use(redact)\n"
        "print(json.dumps([ours, redaction.redact(text), redact('nothing secret')]))"
    )
    deploy.apply(home, hermes_python=hermes.python)
    env = {"PYTHONPATH": str(home / "plugins" / "hermes_patch")}
    text = f"use {secret} for the pictures"
    ours, both, plain = hermes.run_json(code, text, home=home, env=env)
    assert secret in ours and secret not in both, json.dumps([ours, both])
    assert plain == "nothing secret"
