# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Command lines without secrets: none stays, and what is none does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.command_line import (
    known_words,
    without_secret,
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
        ("java -Xmx1g -XX:+UseG1GC -jar /srv/app.jar a", "java -Xmx1g -XX:+UseG1GC -jar /srv/app.jar ***"),
        ("java -Ddb.url=a -cp /opt/a.jar:/opt/* com.Main a.b", "java -Ddb.url=*** -cp /opt/a.jar:/opt/* com.Main ***"),
        ("java -server -XX:OnError=a org.apache.Main", "java -server -XX:OnError=*** org.apache.Main"),
        ("/usr/bin/python3 -u /srv/app.py --token a.b", "/usr/bin/python3 -u /srv/app.py --token ***"),
        ("python3.11 -m uvicorn main:app", "python3.11 -m uvicorn ***"),
        ("node --max-old-space-size=100 /srv/server.js", "node --max-old-space-size=*** /srv/server.js"),
        ("node --require a.b c.d", "node --require *** ***"),
        ("python3 --unknown a.b -u c.py", "python3 --unknown *** -u c.py"),
        ("redis-server --masterauth x 127.0.0.1:6379", "redis-server --masterauth *** ***"),
        ("mysql -uroot -psecret -h db", "mysql -u*** -p*** -h ***"),
        ("curl -H Bearer https://a@b", "curl -H *** ***"),
        ("app -Dsecret pw=abc --Token=a --camelCase --a_b", "app -D*** *** --Token=*** --*** --***"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_is_stored(words: str, stored: str) -> None:
    assert known_words(words.split()) == stored.split()


def test_a_title_is_not_stored() -> None:
    assert known_words(["postgres: app db [local] SELECT"]) == ["postgres: ***"]
    assert known_words(["/srv/my app", "", "-c"]) == ["/srv/my ***", "", "-c"]
    assert known_words([]) == []


@given(AROUND, NAMES, st.sampled_from(["=", ": ", '":"', "' = '"]), SECRETS, AROUND)
def test_no_value_of_such_a_name_stays(before: str, name: str, sign: str, secret: str, after: str) -> None:
    stored = without_secret(f"{before} {name}{sign}{secret}{after}")
    assert not set("ÄÖÜ") & set(stored)


@given(AROUND, SECRETS, AROUND)
def test_no_user_in_a_url_stays(before: str, secret: str, after: str) -> None:
    assert not set("ÄÖÜ") & set(without_secret(f"{before}https://{secret}@{after}"))


@given(
    st.lists(st.text(max_size=40) | st.from_regex(r"--?(key|pwd|X|D|XX:)[=: ]?\w*@?") | st.sampled_from(["-cp", "-m"]))
)
def test_taking_out_twice_is_taking_out_once(words: list[str]) -> None:
    stored = known_words(words)
    assert known_words(stored) == stored and len(stored) == len(words)


def test_no_word_takes_long() -> None:
    assert known_words(["java", "." * 1_000_000 + "!"]) == ["java", "***"]
