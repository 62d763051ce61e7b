# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.code_paths import Extent, Suspect
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.monitoring import agent_of, with_monitoring
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind


def _native(module: str, function: str = "") -> Frame:
    return Frame(function, module, Kind.NATIVE, 0 if function else 0x1000)


def _java(function: str) -> Frame:
    return Frame(function, "[java]", Kind.JAVA)


def _python(function: str, file: str) -> Frame:
    return Frame(function, "[python]", Kind.PYTHON, file=file)


_DEFLATER = (_native("libzip.so", "deflateInit2_"), _java("java.util.zip.Deflater.init"))
_APP = _java("shop.Cart.add")


@pytest.mark.parametrize(
    ("path", "agent"),
    [
        ((*_DEFLATER, _java("datadog.communication.http.OkHttpUtils.gzip"), _APP), "Datadog's tracer"),
        ((_native("libdd_wrapper-glibc-x86_64.so", "ddog_prof_Exporter_new"),), "Datadog's tracer"),
        ((_native("_ddup.cpython-312-x86_64-linux-gnu.so"),), "Datadog's tracer"),
        ((_native("libjavaProfiler15.so"), _native("libc.so.6", "start_thread")), "Datadog's tracer"),
        ((_python("periodic", "/srv/venv/lib/python3.12/site-packages/ddtrace/x.py"),), "Datadog's tracer"),
        ((*_DEFLATER, _java("io.opentelemetry.javaagent.shaded.io.X.send")), "the OpenTelemetry agent"),
        ((_python("f", "/usr/lib/python3/dist-packages/site-packages/opentelemetry/a.py"),), "the OpenTelemetry agent"),
        ((_java("com.newrelic.agent.transport.X.write"),), "the New Relic agent"),
        ((_native("newrelic-20220829.so"),), "the New Relic agent"),
        ((_native("liboneagentproc.so"),), "Dynatrace's OneAgent"),
        ((_java("one.profiler.AsyncProfiler.execute0"),), "Pyroscope's agent, as of Grafana Alloy"),
        ((_java("io.pyroscope.javaagent.Profiler.dump"),), "Pyroscope's agent, as of Grafana Alloy"),
        ((_java("co.elastic.apm.agent.report.X.send"),), "the Elastic APM agent"),
        ((_java("com.singularity.ee.agent.X.run"),), "the AppDynamics agent"),
        ((_java("com.instana.X.run"),), "the Instana agent"),
        ((_java("org.apache.skywalking.apm.agent.core.X.run"),), "the SkyWalking agent"),
        ((_java("com.microsoft.applicationinsights.agent.X.run"),), "the Application Insights agent"),
        ((_java("io.sentry.X.run"),), "the Sentry SDK"),
        # The service's own, whatever stands around it.
        ((*_DEFLATER, _APP), ""),
        ((*_DEFLATER, _APP, _java("io.opentelemetry.javaagent.instrumentation.X.call")), ""),
        ((_python("f", "/srv/app/main.py"), _python("w", "/lib/python3.12/site-packages/ddtrace/w.py")), ""),
        ((_native("libdatabase.so", "ddl_parse"),), ""),
        ((_java("com.newrelicish.X.run"),), ""),
        ((), ""),
    ],
)
def test_the_innermost_code_that_is_nobody_elses_decides(path: tuple[Frame, ...], agent: str) -> None:
    assert agent_of(path) == agent


def _suspect(*path: Frame) -> Suspect:
    return Suspect(path, (), Extent.KEY, 1, 1.0, 0.1, 1.0)


_OURS, _THEIRS = _suspect(_APP), _suspect(_java("com.dynatrace.X.run"))


@pytest.mark.parametrize(
    ("suspects", "more"),
    [
        ([_OURS], ""),
        ([_THEIRS], "; it lies in Dynatrace's OneAgent, which monitors the service"),
        ([_OURS, _THEIRS], "; suspect 2 lies in Dynatrace's OneAgent, which monitors the service"),
        ([_THEIRS, _THEIRS], "; suspects 1 and 2 lie in Dynatrace's OneAgent, which monitors the service"),
        ([], ""),
    ],
)
def test_the_verdicts_sentence_says_so(suspects: list[Suspect], more: str) -> None:
    verdict = with_monitoring(Verdict(Answer.LEAK, "one code path grows steadily", suspects=suspects))
    assert verdict.reason == "one code path grows steadily" + more
