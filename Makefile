# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
#
# make test    everything that CI checks: sets up, then all gates and tests, and ends with a count
# make quick   what a change touches of it
# make demo    boots three disposable hosts, finds their leaks with the four playbooks, takes them down again

RUN = .venv/bin/python tests/gates/run

.PHONY: help
help:
	@sed -n 's/^#: //p' Makefile

#: make test         all gates and tests (runs setup first)
.PHONY: test
test: setup
	$(RUN) all

#: make quick        what a change since origin/main touches: lint, types, unit tests (three minutes at most)
.PHONY: quick
quick: setup
	$(RUN) quick

#: make demo         the whole job on three disposable hosts
.PHONY: demo
demo: setup
	tests/lab/demo

#: make setup        Debian packages and .venv
.PHONY: setup
setup:
	tests/gates/setup.sh

#: make lint         formatting, types, shell, C, house rules
#: make sanity       ansible-test sanity on two versions of ansible-core
#: make docs-check   plugin docs and changelog
#: make package      build the tarball, check its content, run galaxy-importer
#: make unit         unit tests
#: make integration  tests on booted hosts
.PHONY: lint sanity docs-check package unit integration
lint sanity docs-check package unit integration: setup
	$(RUN) $@

#: make bench-analysis   time and memory against jeprof, in build/bench/analysis.json (six minutes)
.PHONY: bench-analysis
bench-analysis: setup
	.venv/bin/python tests/bench/analysis.py

#: make bench-overhead   the cost of jemalloc and the agent, in build/bench/overhead.json, and of asking who holds the memory,
#:                       in build/bench/holders.json (twenty minutes, quiet machine; apt-get install redis-server)
.PHONY: bench-overhead
bench-overhead: setup
	.venv/bin/python tests/bench/overhead.py
	.venv/bin/python tests/bench/holders_look.py

#: make bench-collect    dumps collected from eight hosts in six ways, in build/bench/collect.json (ten minutes)
.PHONY: bench-collect
bench-collect: setup
	.venv/bin/python tests/bench/collect.py

#: make bench-many-hosts  the console's collection from up to a thousand hosts, in build/bench/many-hosts.json
.PHONY: bench-many-hosts
bench-many-hosts: setup
	.venv/bin/python tests/bench/many_hosts.py

#: make bench-archive    10,000 captures added and ranked, in build/bench/archive.json (ten minutes)
.PHONY: bench-archive
bench-archive: setup
	.venv/bin/python tests/bench/archive.py

#: make bench-lake       a lake made from dumps, and ranked, in build/bench/lake.json (fifteen minutes)
.PHONY: bench-lake
bench-lake: setup
	.venv/bin/python tests/bench/lake.py

#: make bench-fleet-page the page of 2,000 hosts, opened in Chromium, in build/bench/fleet-page.json (five minutes)
.PHONY: bench-fleet-page
bench-fleet-page: setup
	.venv/bin/python tests/bench/fleet_page.py

#: make bench-triage     one sample of 2,000 threads and 60,000 mappings, in build/bench/triage.json (ten seconds)
.PHONY: bench-triage
bench-triage: setup
	.venv/bin/python tests/bench/triage.py

#: make bench-truth      verdicts on thousands of simulated processes, by levels in build/bench/truth.json (ten minutes),
#:                       and at each of ten looks, by lives and by levels, in build/bench/looks.json (an hour or two)
.PHONY: bench-truth
bench-truth: setup
	.venv/bin/python tests/bench/truth.py
	.venv/bin/python tests/bench/looks.py

#: make services     the profiler on packaged services of Debian, one after another, in docs/services.md (two hours);
#:                   what tests/services/seen has already is not tried again
.PHONY: services
services: setup
	.venv/bin/python tests/services/run.py --pairs 2

#: make real-leaks  what the report says of leaks that others published, in docs/real_leaks.md (a quarter of an hour for eight)
.PHONY: real-leaks
real-leaks: setup
	.venv/bin/python tests/real_leaks/watched_leaks.py

#: make shapes      what the report says of services that leak in every shape, or look as if they did, in docs/shapes.md
#:                  (half an hour)
.PHONY: shapes
shapes: setup
	.venv/bin/python tests/verdicts/watched_shapes.py

#: make holders      who holds what in services whose answer is known, in docs/holders.md (ten minutes)
.PHONY: holders
holders: setup
	.venv/bin/python tests/holders/watched_holders.py

#: make corpus       files by others' writers read beside their own readers, in docs/corpus.md (twenty minutes for all of them);
#:                   what tests/corpus/seen has already is not tried again
.PHONY: corpus
corpus: setup
	.venv/bin/python tests/corpus/made.py

#: make pictures     the pictures of docs/report.md anew, in docs/images (half a minute)
.PHONY: pictures
pictures: setup
	.venv/bin/python tests/browser/screenshots.py docs/images

#: make fuzz         a minute of coverage-guided fuzzing of what reads the bytes that hosts and their services send
#: make fuzz-files   a million inputs (FUZZ_EACH) for each reader of files that people have, and what came of them, in
#:                   build/fuzz/files.json (two hours)
#: make soak         ten million fuzzing inputs for the readers (FUZZ_INPUTS) besides those of make fuzz-files, the truth
#:                   suite TRUTH_RUNS times (40), the agent under load for SOAK_SECONDS (600), what the controller builds
#:                   for x86_64, aarch64 and musl, 60 faults at random moments of a hunt, variants of tests on booted hosts, and
#:                   on one with a kernel of its own, runs that are killed, and on hosts leaks known to the byte
#:                   TRUTH_ROUNDS times (10), what all roads from a thousand archives say, pods at an API server of
#:                   Kubernetes, ansible-test sanity by all releases of ansible-core from 2.17 on, and the hunt on Debian's
#:                   unstable, and on Ubuntu if OFFHEAP_LAB_UBUNTU names a mirror
.PHONY: fuzz fuzz-files soak
fuzz: setup
	.venv/bin/python -m pytest tests/fuzz
fuzz-files: setup
	.venv/bin/python tests/fuzz/table.py -n $${FUZZ_EACH:-1000000}
soak: setup fuzz-files
	OFFHEAP_FUZZ_INPUTS=$${FUZZ_INPUTS:-10000000} .venv/bin/python -m pytest -s tests/fuzz
	OFFHEAP_TRUTH_RUNS=$${TRUTH_RUNS:-40} .venv/bin/python -m pytest -s tests/integration/truth
	OFFHEAP_SOAK_SECONDS=$${SOAK_SECONDS:-600} .venv/bin/python -m pytest -m soak tests/agent
	OFFHEAP_TEST_BUILD=cross .venv/bin/python -m pytest tests/agent tests/integration/test_hunt.py
	OFFHEAP_TEST_BUILD=aarch64 .venv/bin/python -m pytest \
		tests/agent/test_control.py tests/agent/test_spool.py tests/agent/test_forked_workers.py tests/agent/test_named.py
	OFFHEAP_TEST_BUILD=musl .venv/bin/python -m pytest tests/agent/test_allocator.py tests/agent/test_control.py \
		tests/agent/test_forked_workers.py tests/agent/test_hard_cases.py tests/agent/test_ledger.py tests/agent/test_named.py \
		tests/agent/test_prof_hooks.py tests/agent/test_short_threads.py tests/agent/test_spool.py
	OFFHEAP_ROADS=1000 .venv/bin/python -m pytest tests/unit/plugins/test_one_road.py
	$(RUN) sanity sanity-others
	.venv/bin/python -m pytest -m soak_only tests/unit tests/agent tests/integration tests/gates tests/kubernetes \
		tests/faults/test_random.py
	OFFHEAP_TRUTH_RUNS=$${TRUTH_ROUNDS:-10} .venv/bin/python -m pytest -s tests/integration/test_truth_on_hosts.py
	OFFHEAP_TEST_SUITES=bullseye,trixie,sid .venv/bin/python -m pytest tests/integration/test_hunt.py
	if [ "$${OFFHEAP_LAB_UBUNTU:-}" ]; then \
		OFFHEAP_TEST_SUITES=bullseye,jammy,noble .venv/bin/python -m pytest tests/integration/test_hunt.py; \
	else echo "== not tried: Ubuntu, since OFFHEAP_LAB_UBUNTU names no mirror"; fi

#: make lock         lock the requirements again after a change; make lock UPGRADE=--upgrade takes the newest versions
.PHONY: lock
lock: setup
	tests/gates/lock.sh $(UPGRADE)

#: make faults       faults on booted hosts, judged by four invariants; FILTER="never ready" chooses, SEED=7 shuffles
.PHONY: faults
faults: setup
	OFFHEAP_FAULTS_SEED=$${SEED:-0} .venv/bin/python -m pytest tests/faults/test_matrix.py -k "$${FILTER:-}"

#: make clean        remove what the above left here (the lab's images stay)
.PHONY: clean
clean:
	rm -rf .ansible .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .venv build
