# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The packaged services that are tried: what is installed, what little is configured, and a client that drives it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# What packages and units are called in each suite of Debian, where that says a version.
SUITES = {
    "bookworm": {"{php}": "8.2", "{postgresql}": "15", "{tomcat}": "10", "{postfix}": "postfix@-"},
    "trixie": {"{php}": "8.4", "{postgresql}": "17", "{tomcat}": "11", "{postfix}": "postfix"},
}

_BACKEND = (
    "systemctl -q is-active backend"
    " || systemd-run -q --unit=backend python3 -m http.server 8080 --directory /usr/share/doc"
)
_PHP = (
    "echo '<?php $z = new ZipArchive; mysqli_init(); curl_init(); for ($i = 0; $i < 2000; $i++)"
    ' $a[] = str_repeat("x", $i); echo count($a);\' > /var/www/html/a.php'
)
_SMTP = (
    "python3 -c \"import smtplib; s = smtplib.SMTP('localhost'); s.sendmail('a@localhost', 'root@localhost', 'hello')\""
)


@dataclass(frozen=True)
class Service:
    """One unit. Commands run as root on the host: ``setup`` once, ``client`` again and again, ``upgrade`` under load.

    ``writes`` matches files that the service itself changes outside of /var/lib. With ``children``, workers are
    profiled beside the main process. ``worker`` prints the process that is attached to, where it is not the one with
    the most memory.
    """

    unit: str
    packages: str
    client: str
    setup: str = ""
    upgrade: str = ""
    writes: str = ""
    children: bool = False
    worker: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """What tells it from others in the table, and names its file: the unit, and what is special."""
        return re.sub(r"[^\w.@-]+", "-", f"{self.unit} {self.note}".strip())

    def of(self, suite: str) -> Service:
        """The same with the names that a suite has for it."""
        found = self
        for field in ("unit", "packages", "client", "setup", "upgrade", "worker"):
            text = getattr(found, field)
            for word, version in SUITES[suite].items():
                text = text.replace(word, version)
            found = replace(found, **{field: text})
        return found


def _web(port: int, path: str = "/") -> str:
    return f"curl -s -o /dev/null http://127.0.0.1:{port}{path}"


def _talk(port: int, words: str, answer: str = "") -> str:
    """Send lines to a port and expect an answer that matches."""
    return f"printf '{words}\\r\\n' | nc -q 1 -w 3 127.0.0.1 {port} | grep -aq '{answer}'"


def _datagram(port: int, content: str) -> str:
    """Send one datagram and expect an answer."""
    return f"printf '{content}' | nc -u -w 1 127.0.0.1 {port} | grep -aq ."


def _child(unit: str) -> str:
    """One of its workers."""
    return f"pgrep -o -P $(systemctl show -P MainPID {unit})"


def _dns(name: str, kind: str = "A") -> str:
    return f"dig +time=2 +tries=1 @127.0.0.1 {name} {kind} > /dev/null"


# Services that get along on one host, which is booted for them.
LOTS: tuple[tuple[Service, ...], ...] = (
    (
        Service("memcached", "memcached", _talk(11211, r"set k 0 0 5\r\nhello\r\nstats\r\nquit", "STORED")),
        Service("redis-server", "redis-server", "redis-benchmark -q -n 3000 -r 10000 -t set,get,lpush > /dev/null"),
        Service("nginx", "nginx-light", _web(80), children=True, worker=_child("nginx")),
        Service(
            "haproxy",
            "haproxy",
            _web(8000),
            setup=f"""{_BACKEND}; cat > /etc/haproxy/keep.lua <<'END'
kept = {{}}
core.register_action("keep", {{"http-req"}}, function() kept[#kept + 1] = string.rep("x", 9000) .. #kept end)
END
sed -i '/^global/a\\    lua-load /etc/haproxy/keep.lua' /etc/haproxy/haproxy.cfg
cat >> /etc/haproxy/haproxy.cfg <<'END'
frontend front
    bind 127.0.0.1:8000
    http-request lua.keep
    default_backend back
backend back
    server one 127.0.0.1:8080
END""",
            worker=_child("haproxy"),
        ),
        Service("slapd", "slapd ldap-utils", "ldapsearch -x -H ldap://127.0.0.1 -b '' -s base '*' + > /dev/null"),
        Service("cron", "cron", "crontab -l > /dev/null 2>&1; true", setup="echo '* * * * * true' | crontab -"),
    ),
    (
        Service(
            "postgresql@{postgresql}-main",
            "postgresql",
            "cd /; su postgres -c 'pgbench -c 4 -T 2' > /dev/null 2>&1; su postgres -c 'psql -qc \"set"
            " parallel_setup_cost = 0; set min_parallel_table_scan_size = 0; select count(*) from pgbench_accounts\"'"
            " > /dev/null",
            setup="cd /; su postgres -c 'pgbench -i -q' 2> /dev/null",
            children=True,
            worker="cd /; systemd-run -q --unit=client-session --uid=postgres pgbench -n -S -T 300; sleep 2;"
            " pgrep -f 'postgres: .* postgres postgres .local. (SELECT|idle)' | head -n 1",
        ),
        Service(
            "mariadb",
            "mariadb-server",
            "mariadb-slap --auto-generate-sql --concurrency=4 --number-of-queries=200 > /dev/null",
        ),
        Service("varnish", "varnish", _web(6081), setup=_BACKEND),
        Service(
            "freeradius",
            "freeradius freeradius-utils",
            "radtest bob hello 127.0.0.1 0 testing123 > /dev/null",
            setup="sed -i '1i bob Cleartext-Password := \"hello\"' /etc/freeradius/3.0/mods-config/files/authorize",
        ),
        Service(
            "beanstalkd",
            "beanstalkd",
            "for n in $(seq 300); do printf 'put 1 0 60 2000\\r\\n%02000d\\r\\n' $n; done"
            " | nc -q 1 -w 3 127.0.0.1 11300"
            " | grep -aq INSERTED",
        ),
        Service("rsyslog", "rsyslog", "for n in 1 2 3 4 5; do logger hello $n; done"),
    ),
    (
        Service(
            "php{php}-fpm",
            "php-fpm php-mysql php-curl php-zip libfcgi-bin",
            "SCRIPT_FILENAME=/var/www/html/a.php REQUEST_METHOD=GET cgi-fcgi -bind -connect /run/php/php{php}-fpm.sock"
            " | grep -q 2000",
            setup=f"mkdir -p /var/www/html; {_PHP}",
            children=True,
            worker=_child("php{php}-fpm"),
            note="with mysqli, curl, zip",
        ),
        Service("lighttpd", "lighttpd", _web(80)),
        Service(
            "dnsmasq",
            "dnsmasq",
            _dns("a.test"),
            setup="printf 'no-resolv\\naddress=/a.test/10.0.0.1\\n' > /etc/dnsmasq.d/a.conf",
        ),
        Service("mosquitto", "mosquitto mosquitto-clients", "mosquitto_pub -r -t t/$(date +%N) -m hello"),
        Service("atd", "at", "echo true | at now 2> /dev/null"),
        Service("{postfix}", "postfix", _SMTP, children=True),
    ),
    (
        Service(
            "apache2",
            "apache2 libapache2-mod-php php-mysql php-curl php-zip",
            "curl -s http://127.0.0.1/a.php | grep -q 2000",
            setup=_PHP,
            children=True,
            worker=_child("apache2"),
            note="with mod_php",
        ),
        Service("unbound", "unbound", _dns("localhost"), writes="/etc/unbound/*"),
        Service("snmpd", "snmpd snmp", "snmpwalk -v2c -c public 127.0.0.1 1.3.6.1.2.1.1 > /dev/null"),
        Service(
            "vsftpd",
            "vsftpd",
            "curl -s ftp://127.0.0.1/",
            setup="echo anonymous_enable=YES >> /etc/vsftpd.conf",
            children=True,
        ),
        Service("privoxy", "privoxy", "curl -s -o /dev/null -x 127.0.0.1:8118 http://config.privoxy.org/"),
        Service("squid", "squid", "curl -s -o /dev/null -x 127.0.0.1:3128 http://127.0.0.1:8080/", setup=_BACKEND),
    ),
    (
        Service(
            "nginx",
            "nginx-light",
            _web(80),
            upgrade="kill -USR2 $(cat /run/nginx.pid); sleep 1; kill -QUIT $(cat /run/nginx.pid.oldbin); sleep 1",
            children=True,
            note="after USR2",
        ),
        Service("named", "bind9", _dns("localhost")),
        Service("exim4", "exim4-daemon-light", _SMTP),
        Service("dovecot", "dovecot-imapd", _talk(143, "a CAPABILITY\\r\\nb LOGOUT", "IMAP4")),
        Service("proftpd", "proftpd-core", _talk(21, "FEAT\\r\\nQUIT", "MLST")),
        Service(
            "tinyproxy", "tinyproxy", "curl -s -o /dev/null -x 127.0.0.1:8888 http://127.0.0.1:8080/", setup=_BACKEND
        ),
    ),
    (
        Service("apache2", "apache2", _web(80), children=True, worker=_child("apache2")),
        Service("nsd", "nsd", _dns("version.server", "CH TXT")),
        Service("smbd", "samba smbclient", "smbclient -N -L 127.0.0.1 > /dev/null"),
        Service("nmbd", "samba smbclient", "nmblookup -U 127.0.0.1 $(hostname) > /dev/null"),
        Service("avahi-daemon", "avahi-daemon avahi-utils", "avahi-resolve -n $(hostname).local > /dev/null"),
        Service("cups", "cups-daemon", _web(631), writes="/etc/cups/*"),
    ),
    (
        Service("knot", "knot", _dns("version.server", "CH TXT")),
        Service("prometheus-node-exporter", "prometheus-node-exporter", _web(9100, "/metrics")),
        Service("ngircd", "ngircd", _talk(6667, "NICK a\\r\\nUSER a b c d\\r\\nQUIT", "a")),
        Service("icecast2", "icecast2", _web(8000)),
        Service("rpcbind", "rpcbind", "rpcinfo -p > /dev/null"),
        Service("nscd", "nscd", "getent passwd app > /dev/null"),
    ),
    (
        Service("pdns", "pdns-server pdns-backend-bind", _dns("a.test")),
        Service("opendkim", "opendkim", "test -S /run/opendkim/opendkim.sock"),
        Service("saslauthd", "sasl2-bin", "testsaslauthd -u a -p b > /dev/null; true"),
        Service("lldpd", "lldpd", "lldpcli show interfaces > /dev/null"),
        Service("tor@default", "tor", _talk(9050, "GET / HTTP/1.0\\r\\n", "Tor")),
        Service("ssh", "openssh-server", "ssh-keyscan 127.0.0.1 2> /dev/null | grep -q ssh"),
    ),
    (
        Service(
            "rspamd",
            "rspamd",
            "printf 'Subject: a\\n\\nhello\\n' | rspamc > /dev/null",
            worker="pgrep -f '^rspamd: controller'",
        ),
        Service("gearman-job-server", "gearman-job-server gearman-tools", "gearadmin --status > /dev/null"),
        Service("collectd", "collectd-core", "true"),
        Service("transmission-daemon", "transmission-daemon", _web(9091), writes="/etc/transmission-daemon/*"),
        Service("mpd", "mpd", _talk(6600, "stats\\r\\nclose", "OK")),
        Service("zabbix-agent", "zabbix-agent", "zabbix_agentd -t agent.ping > /dev/null"),
    ),
    (
        Service(
            "dropbear",
            "dropbear-bin dropbear",
            "ssh-keyscan -p 2222 127.0.0.1 2> /dev/null | grep -q ssh",
            setup="echo DROPBEAR_PORT=2222 >> /etc/default/dropbear",
        ),
        Service(
            "fail2ban",
            "fail2ban python3-systemd nftables",
            "fail2ban-client ping > /dev/null",
            setup="printf '[DEFAULT]\\nbackend = systemd\\n' > /etc/fail2ban/jail.local",
        ),
        Service("supervisor", "supervisor", "supervisorctl status > /dev/null"),
        Service("munin-node", "munin-node", _talk(4949, "list\\r\\nquit", "munin")),
        Service("prosody", "prosody", _talk(5222, "<stream>", "stream")),
        Service("bitlbee", "bitlbee", _talk(6667, "NICK a\\r\\nUSER a b c d\\r\\nQUIT", "a")),
    ),
    (
        Service("coturn", "coturn", "turnutils_stunclient 127.0.0.1 > /dev/null"),
        Service("tomcat{tomcat}", "tomcat{tomcat}", _web(8080)),
        Service("etcd", "etcd-server etcd-client", "ETCDCTL_API=3 etcdctl put a b > /dev/null"),
        Service("rabbitmq-server", "rabbitmq-server", "rabbitmqctl list_queues > /dev/null"),
    ),
    (
        Service(
            "chrony",
            "chrony",
            "chronyc -n tracking > /dev/null",
            # A host of the lab may not set the clock.
            setup="sed -i 's/^DAEMON_OPTS=.*/DAEMON_OPTS=\"-F 1 -x\"/' /etc/default/chrony;"
            " mkdir -p /etc/systemd/system/chrony.service.d;"
            " printf '[Unit]\nConditionCapability=\n' > /etc/systemd/system/chrony.service.d/clock.conf;"
            " systemctl daemon-reload",
        ),
        Service(
            "kea-dhcp4-server",
            "kea-dhcp4-server",
            'echo \'{"command": "status-get"}\' | nc -U -N -w 3 /run/kea/kea4-ctrl-socket | grep -q uptime',
        ),
        Service("pdns-recursor", "pdns-recursor", _dns("localhost")),
        Service(
            "stunnel@web",
            "stunnel4 openssl",
            "curl -sk -o /dev/null https://127.0.0.1:8443/",
            setup=f"""{_BACKEND}; cd /etc/stunnel
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 9 -subj /CN=localhost
cat > web.conf <<'END'
foreground = yes
key = /etc/stunnel/key.pem
cert = /etc/stunnel/cert.pem
[web]
accept = 127.0.0.1:8443
connect = 127.0.0.1:8080
END""",
        ),
        Service(
            "pgbouncer",
            "pgbouncer postgresql-client",
            "psql -q -h 127.0.0.1 -p 6432 -U pgbouncer pgbouncer -c 'show stats' > /dev/null",
            setup="sed -i 's/^auth_type.*/auth_type = any/' /etc/pgbouncer/pgbouncer.ini",
        ),
        Service(
            "monit",
            "monit",
            "monit status > /dev/null",
            setup="printf 'set httpd port 2812 use address localhost allow localhost\n' > /etc/monit/conf.d/web",
        ),
        Service(
            "postgrey",
            "postgrey",
            _talk(
                10023, r"request=smtpd_access_policy\nclient_address=10.0.0.1\nsender=a@b\nrecipient=c@d\n", "action"
            ),
        ),
        Service("inspircd", "inspircd", _talk(6667, "NICK a\\r\\nUSER a b c d\\r\\nQUIT", "a")),
    ),
    (
        Service("prometheus", "prometheus", _web(9090, "/api/v1/query?query=up")),
        Service("prometheus-alertmanager", "prometheus-alertmanager", _web(9093, "/api/v2/status")),
        Service(
            "influxdb",
            "influxdb",
            "curl -s -o /dev/null http://127.0.0.1:8086/query --data-urlencode 'q=create database a';"
            " curl -sf 'http://127.0.0.1:8086/write?db=a' --data-binary 'm v=1'",
        ),
        Service("nats-server", "nats-server", _talk(4222, r"PUB a 5\r\nhello\r\nPING", "PONG")),
        Service("caddy", "caddy", _web(80)),
        Service(
            "carbon-cache",
            "graphite-carbon",
            "for n in $(seq 50); do echo a.b.$n 1 $(date +%s); done | nc -q 1 -w 3 127.0.0.1 2003",
        ),
        Service("mumble-server", "mumble-server", _datagram(64738, 12 * r"\0")),
        Service("minidlna", "minidlna", _web(8200)),
    ),
)
