# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Command lines without secrets: none stays, and what is none does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.command_line import (
    HIDDEN,
    without_secret,
    without_secrets,
)

# No character of a secret is in a name, a sign or the mark, so that a single one that stays is found.
SECRETS = st.text(st.sampled_from("ÄÖÜ "), min_size=1).map(lambda text: "Ä" + text)
NAMES = st.sampled_from(
    "password DB_PASSWD PWD secret clientSecret api-token Key SSL.keyStorePassword x_credentials".split()
)
AROUND = st.text(st.characters(codec="utf-8", exclude_characters="ÄÖÜ"), max_size=20)


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        (["java", "-Xmx1g", "-jar", "/srv/a b.jar"], ["java", "-Xmx1g", "-jar", "/srv/a b.jar"]),
        (["java", "-Ddb.password=a b=c"], ["java", "-Ddb.password=***"]),
        (["mysql", "--password", "a", "-h", "db"], ["mysql", "--password", "***", "-h", "db"]),
        (["x", "--token", "--secret", "a"], ["x", "--token", "***", "***"]),
        (["x", "--token=", "", "--key"], ["x", "--token=", "", "--key"]),
        (["sh", "-c", "PGPASSWORD='a' psql -h db"], ["sh", "-c", "PGPASSWORD='***"]),
        (["sh", "-c", "exec app --api-key a -v"], ["sh", "-c", "exec app --api-key ***"]),
        (["app", '{"user": "u", "password": "a"}'], ["app", '{"user": "u", "password": "***']),
        (["app", "jdbc:mysql://db/x?user=u&password=a"], ["app", "jdbc:mysql://db/x?user=u&password=***"]),
        (["app", "amqp://u:p/q@r@mq:5672/v"], ["app", "amqp://***@mq:5672/v"]),
        (["app", "http://token=a@b/c,http://d:e@f"], ["app", "http://***@f"]),
        (["java", "-cp", "/opt/keycloak.jar:/opt/tokens.jar"], ["java", "-cp", "/opt/keycloak.jar:/opt/tokens.jar"]),
        (["echo", "the key fits"], ["echo", "the key fits"]),
        ([], []),
    ],
)  # fmt: skip
def test_what_is_stored(words: list[str], stored: list[str]) -> None:
    assert without_secrets(words) == stored


@given(AROUND, NAMES, st.sampled_from(["=", ": ", '":"', "' = '"]), SECRETS, AROUND)
def test_no_value_of_such_a_name_stays(before: str, name: str, sign: str, secret: str, after: str) -> None:
    stored = without_secret(f"{before} {name}{sign}{secret}{after}")
    assert not set("ÄÖÜ") & set(stored)


@given(st.lists(AROUND, max_size=3), st.sampled_from(["-", "--", "-D"]), NAMES, SECRETS, st.booleans())
def test_no_value_of_such_an_option_stays(before: list[str], dash: str, name: str, secret: str, split: bool) -> None:
    option = [f"{dash}{name}", secret] if split else [f"sh -c 'run {dash}{name} {secret}'"]
    assert not set("ÄÖÜ") & set("".join(without_secrets([*before, *option])))


@given(AROUND, SECRETS, AROUND)
def test_no_user_in_a_url_stays(before: str, secret: str, after: str) -> None:
    assert not set("ÄÖÜ") & set(without_secret(f"{before}https://{secret}@{after}"))


@given(st.lists(st.text(max_size=40) | st.from_regex(r"--?(key|pwd)[=: ]?\w*@?")))
def test_taking_out_twice_is_taking_out_once(words: list[str]) -> None:
    stored = without_secrets(words)
    assert without_secrets(stored) == stored and len(stored) == len(words)


@given(st.lists(st.from_regex(r"-{0,2}[abdfgh]+=?[abdfgh/. ]*\Z")))
def test_what_names_no_secret_stays(words: list[str]) -> None:
    assert without_secrets(words) == words and HIDDEN not in "".join(words)
