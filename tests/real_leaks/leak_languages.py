# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How packages of a language are had, how a program with them is run, and what is said of a leak in one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """How packages of a language are had, with ``{package}``, ``{version}``, ``{beside}`` and ``{directory}``; how a
    program with them is built and run. ``debian`` is the host's package for it, if any; of what Debian itself packages
    the fixed version is in a later ``fixed_suite``."""

    registry: str
    fetch: str
    source: str
    loop: str
    start: str
    debian: str = ""
    build: str = ""
    fixed_suite: str = "bookworm"


PYTHON = Language(
    registry="PyPI",
    fetch="{python} -m pip install -q --target {directory} --only-binary=:all: --python-version 3.11"
    " {package}=={version} {beside}",
    source="app.py",
    loop="""{code}
import time
while True:
    step()
    time.sleep({pause})
""",
    start="/usr/bin/python3 {directory}/app.py",
    debian="python3",
)
NODE = Language(
    registry="npm",
    fetch="npm install --silent --no-audit --no-fund --prefix {directory} {package}@{version}",
    source="app.js",
    loop="""{code}
setInterval(step, 1000 * {pause})
""",
    start="/usr/bin/node {directory}/app.js",
    debian="nodejs",
)
JAVA = Language(
    registry="Maven Central",
    fetch="sh -c 'for one in {package}:{version} {beside}; do"
    " mvn -q dependency:copy -Dartifact=$one -DoutputDirectory={directory} || exit; done'",
    source="App.java",
    loop="""{code}
class App {{
    public static void main(String[] arguments) throws Exception {{
        for (Leak leak = new Leak(); ; Thread.sleep((long) (1000 * {pause})))
            leak.step();
    }}
}}
""",
    start="/usr/bin/java -Xmx128m -cp {directory}/*:{directory} App",
    debian="openjdk-17-jdk-headless",
    build="javac --release 17 -cp {directory}/* {directory}/App.java",
)
GO = Language(
    registry="Go modules",
    fetch="sh -c 'cd {directory} && go mod init app && go get {package}@v{version}'",
    source="app.go",
    loop="""package main

import "time"

{code}
func main() {{
    for ; ; time.Sleep({pause} * 1e9) {{
        step()
    }}
}}
""",
    start="{directory}/app",
    build="go build -C {directory} -o app .",
)
RUST = Language(
    registry="crates.io",
    fetch="sh -c 'cargo init -q --name app {directory} && cargo add -q --manifest-path {directory}/Cargo.toml"
    " {package}@={version} {beside}'",
    source="src/main.rs",
    loop="""{code}
fn main() {{
    let mut leak = Leak::new();
    loop {{
        leak.step();
        std::thread::sleep(std::time::Duration::from_secs_f64({pause}));
    }}
}}
""",
    start="{directory}/bin/app",
    build="cargo install -q --path {directory} --root {directory} --target-dir {directory}-target",
)
RUBY = Language(
    registry="Debian",
    fetch="true",
    source="app.rb",
    loop="""{code}
loop do
  step
  sleep {pause}
end
""",
    start="/usr/bin/ruby {directory}/app.rb",
    debian="ruby",
    fixed_suite="trixie",
)


@dataclass(frozen=True)
class Leak:
    """One leak. ``mended`` is a regular expression for the functions that upstream mended, or that call these and have
    no other purpose; ``pause`` are seconds between two steps; ``beside`` is what else is fetched or, with Rust, told to
    cargo. Python's small ``objects`` are in profiles only where that is asked for. ``why_not`` says what is known of
    why it is not named."""

    name: str
    language: Language
    package: str
    leaking: str
    fixed: str
    report: str
    mended: str
    pause: float
    code: str
    objects: bool = False
    beside: str = ""
    why_not: str = ""
