# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The packaged services that are tried: what is installed, what little is configured, and a client that drives it."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.services.packaged import Service, child, datagram, dns, talk, web

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

# Services that get along on one host, which is booted for them.
LOTS: tuple[tuple[Service, ...], ...] = (
    (
        Service("memcached", "memcached", talk(11211, r"set k 0 0 5\r\nhello\r\nstats\r\nquit", "STORED")),
        Service("redis-server", "redis-server", "redis-benchmark -q -n 3000 -r 10000 -t set,get,lpush > /dev/null"),
        Service("nginx", "nginx-light", web(80), children=True, worker=child("nginx")),
        Service(
            "haproxy",
            "haproxy",
            web(8000),
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
            worker=child("haproxy"),
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
        Service("varnish", "varnish", web(6081), setup=_BACKEND),
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
            worker=child("php{php}-fpm"),
            note="with mysqli, curl, zip",
        ),
        Service("lighttpd", "lighttpd", web(80)),
        Service(
            "dnsmasq",
            "dnsmasq",
            dns("a.test"),
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
            worker=child("apache2"),
            note="with mod_php",
        ),
        Service(
            "unbound",
            "unbound dns-root-data",
            dns("localhost"),
            setup="printf 'server:\\n  interface: 127.0.0.1\\n' > /etc/unbound/unbound.conf.d/here.conf",
            writes="/etc/unbound/*",
        ),
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
            web(80),
            upgrade="kill -USR2 $(cat /run/nginx.pid); sleep 1; kill -QUIT $(cat /run/nginx.pid.oldbin); sleep 1",
            children=True,
            note="after USR2",
        ),
        Service("named", "bind9", dns("localhost")),
        Service("exim4", "exim4-daemon-light", _SMTP),
        Service("dovecot", "dovecot-imapd", talk(143, "a CAPABILITY\\r\\nb LOGOUT", "IMAP4")),
        Service("proftpd", "proftpd-core", talk(21, "FEAT\\r\\nQUIT", "MLST")),
        Service(
            "tinyproxy", "tinyproxy", "curl -s -o /dev/null -x 127.0.0.1:8888 http://127.0.0.1:8080/", setup=_BACKEND
        ),
    ),
    (
        Service("apache2", "apache2", web(80), children=True, worker=child("apache2")),
        Service("nsd", "nsd", dns("version.server", "CH TXT")),
        Service("smbd", "samba smbclient", "smbclient -N -L 127.0.0.1 > /dev/null"),
        Service("nmbd", "samba smbclient", "nmblookup -U 127.0.0.1 $(hostname) > /dev/null"),
        Service("avahi-daemon", "avahi-daemon avahi-utils", "avahi-resolve -n $(hostname).local > /dev/null"),
        Service("cups", "cups-daemon", web(631), writes="/etc/cups/*"),
    ),
    (
        Service(
            "knot",
            "knot",
            dns("version.server", "CH TXT"),
            setup="printf 'server:\\n  rundir: /run/knot\\n  user: knot:knot\\n  listen: 127.0.0.1@53\\n'"
            " > /etc/knot/knot.conf",
        ),
        Service("prometheus-node-exporter", "prometheus-node-exporter", web(9100, "/metrics")),
        Service("ngircd", "ngircd", talk(6667, "NICK a\\r\\nUSER a b c d\\r\\nQUIT", "a")),
        Service("icecast2", "icecast2", web(8000)),
        Service("rpcbind", "rpcbind", "rpcinfo -p > /dev/null"),
        Service("nscd", "nscd", "getent passwd app > /dev/null"),
    ),
    (
        Service("pdns", "pdns-server pdns-backend-bind", dns("a.test")),
        Service("opendkim", "opendkim", "test -S /run/opendkim/opendkim.sock"),
        Service("saslauthd", "sasl2-bin", "testsaslauthd -u a -p b > /dev/null; true"),
        Service("lldpd", "lldpd", "lldpcli show interfaces > /dev/null"),
        Service("tor@default", "tor", talk(9050, "GET / HTTP/1.0\\r\\n", "Tor")),
        Service(
            "ssh",
            "openssh-server",
            "ssh-keyscan 127.0.0.1 2> /dev/null | grep -q ssh",
            # Since 9.8, it soon refuses who only asks.
            setup="sshd -T | grep -q persourcepenalties"
            " && echo PerSourcePenalties no > /etc/ssh/sshd_config.d/here.conf",
            worker="systemctl show -P MainPID ssh",
        ),
    ),
    (
        Service(
            "rspamd",
            "rspamd",
            "printf 'Subject: a\\n\\nhello\\n' | rspamc > /dev/null",
            worker="pgrep -f '^rspamd: controller'",
        ),
        Service("gearman-job-server", "gearman-job-server gearman-tools", "gearadmin --status > /dev/null"),
        Service(
            "collectd",
            "collectd-core",
            "echo LISTVAL | nc -U -q 1 -w 3 /run/collectd-unixsock | grep -q memory",
            setup="""cat > /etc/collectd/collectd.conf <<'END'
LoadPlugin cpu
LoadPlugin memory
LoadPlugin processes
LoadPlugin unixsock
<Plugin unixsock>
    SocketFile "/run/collectd-unixsock"
</Plugin>
END""",
        ),
        Service("transmission-daemon", "transmission-daemon", web(9091), writes="/etc/transmission-daemon/*"),
        Service("mpd", "mpd", talk(6600, "stats\\r\\nclose", "OK")),
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
        Service("munin-node", "munin-node", talk(4949, "list\\r\\nquit", "munin")),
        Service("prosody", "prosody", talk(5222, "<stream>", "stream")),
        Service("bitlbee", "bitlbee", talk(6667, "NICK a\\r\\nUSER a b c d\\r\\nQUIT", "a")),
    ),
    (
        Service("coturn", "coturn", "turnutils_stunclient 127.0.0.1 > /dev/null"),
        Service("tomcat{tomcat}", "tomcat{tomcat}", web(8080)),
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
        Service("pdns-recursor", "pdns-recursor", dns("localhost")),
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
            talk(10023, r"request=smtpd_access_policy\nclient_address=10.0.0.1\nsender=a@b\nrecipient=c@d\n", "action"),
        ),
        Service("inspircd", "inspircd", talk(6667, "NICK a\\r\\nUSER a b c d\\r\\nQUIT", "a")),
    ),
    (
        Service("prometheus", "prometheus", web(9090, "/api/v1/query?query=up")),
        Service("prometheus-alertmanager", "prometheus-alertmanager", web(9093, "/api/v2/status")),
        Service(
            "influxdb",
            "influxdb",
            "curl -s -o /dev/null http://127.0.0.1:8086/query --data-urlencode 'q=create database a';"
            " curl -sf 'http://127.0.0.1:8086/write?db=a' --data-binary 'm v=1'",
        ),
        Service("nats-server", "nats-server", talk(4222, r"PUB a 5\r\nhello\r\nPING", "PONG")),
        Service("caddy", "caddy", web(80)),
        Service(
            "carbon-cache",
            "graphite-carbon",
            "for n in $(seq 50); do echo a.b.$n 1 $(date +%s); done | nc -q 1 -w 3 127.0.0.1 2003",
        ),
        Service("mumble-server", "mumble-server", datagram(64738, 12 * r"\0")),
        Service("minidlna", "minidlna", web(8200)),
    ),
    (
        Service("zookeeper", "zookeeperd", talk(2181, "srvr", "version")),
        Service(
            "icinga2",
            "icinga2",
            "curl -sfk -o /dev/null -u root:$(sed -n 's/.*password = \"\\(.*\\)\"/\\1/p'"
            " /etc/icinga2/conf.d/api-users.conf) https://127.0.0.1:5665/v1/status",
            setup="icinga2 api setup",
            children=True,
        ),
        Service(
            "krb5-kdc",
            "krb5-kdc krb5-admin-server krb5-user",
            "echo hello | kinit bob > /dev/null",
            setup="""cat > /etc/krb5.conf <<'END'
[libdefaults]
    default_realm = A.TEST
[realms]
    A.TEST = {
        kdc = 127.0.0.1
    }
END
kdb5_util create -s -P hello; kadmin.local -q 'addprinc -pw hello bob'""",
        ),
        Service("pure-ftpd", "pure-ftpd", talk(21, r"FEAT\r\nQUIT", "Pure-FTPd"), children=True),
        Service(
            "spamd",
            "spamd",
            r"printf 'CHECK SPAMC/1.2\r\nContent-length: 23\r\n\r\nSubject: a\r\n\r\nhello a\r\n'"
            " | nc -q 10 -w 10 127.0.0.1 783 | grep -q '^Spam: False'",
            children=True,
        ),
        Service(
            "syslog-ng",
            "syslog-ng-core",
            "logger hello $$; for n in $(seq 20); do grep -q hello.$$ /var/log/messages && exit 0; sleep 0.2; done;"
            " exit 1",
        ),
        Service("munge", "munge", "munge -n | unmunge > /dev/null"),
        Service("kresd@1", "knot-resolver", dns("localhost")),
    ),
    (
        Service("ejabberd", "ejabberd", "curl -sk -o /dev/null https://127.0.0.1:5280/admin/"),
        Service("opensmtpd", "opensmtpd", _SMTP.replace("'hello'", "'From: a@localhost'"), children=True),
        Service(
            "cyrus-imapd",
            "cyrus-imapd",
            talk(143, "a CAPABILITY\\r\\nb LOGOUT", "IMAP4"),
            # These are in packages of their own.
            setup=r"sed -i -E '/^\s*(pop3|nntp|http)\s/d' /etc/cyrus.conf",
            children=True,
        ),
        Service(
            "uwsgi",
            "uwsgi uwsgi-plugin-python3",
            "curl -s http://127.0.0.1:9000/ | grep -q 179700",
            setup="""mkdir -p /srv/site; cat > /srv/site/app.py <<'END'
def application(environment, answer):
    answer("200 OK", [])
    kept = [b"x" * number for number in range(600)]
    return [str(sum(map(len, kept))).encode()]
END
cat > /etc/uwsgi/apps-enabled/app.ini <<'END'
[uwsgi]
plugins = python3
chdir = /srv/site
module = app
http-socket = 127.0.0.1:9000
processes = 2
END""",
            children=True,
        ),
        Service(
            "tarantool@example",
            "tarantool",
            "echo box.info.status | tarantoolctl enter example 2>&1 | grep -q running",
            setup="ln -sf ../instances.available/example.lua /etc/tarantool/instances.enabled/",
        ),
        Service("{minetest}-server", "{minetest}-server", datagram(30000, r"\117\105\164\003\0\0\0\001")),
        Service("syncthing@root", "syncthing", web(8384, "/rest/noauth/health")),
    ),
    (
        Service("apt-cacher-ng", "apt-cacher-ng", web(3142)),
        Service(
            "dnsdist",
            "dnsdist",
            f"{dns('a.test')} && dig +short @127.0.0.1 a.test | grep -q 10.0.0.1",
            setup="echo 'addAction(AllRule(), SpoofAction(\"10.0.0.1\"))' >> /etc/dnsdist/dnsdist.conf",
        ),
        Service(
            "nagios-nrpe-server",
            "nagios-nrpe-server nagios-nrpe-plugin",
            "/usr/lib/nagios/plugins/check_nrpe -H 127.0.0.1 > /dev/null",
        ),
        Service("NetworkManager", "network-manager", "nmcli general status > /dev/null"),
        Service(
            "redis-sentinel",
            "redis-sentinel redis-tools",
            "redis-cli -p 26379 info sentinel | grep -q sentinel_masters:1",
            # It writes what it has found out.
            writes="/etc/redis/sentinel.conf",
        ),
        Service(
            "xinetd",
            "xinetd",
            "nc -w 2 127.0.0.1 13 | grep -q UTC",
            setup="sed -i '/^service daytime/,/^}/s/disable.*= yes/disable = no/' /etc/xinetd.d/daytime",
        ),
        Service("gpsd", "gpsd gpsd-clients", "gpspipe -w -n 1 | grep -q VERSION"),
        # As many run it. What of C++ such a library allocates by itself, no other in front of it would see.
        Service(
            "mariadb",
            "mariadb-server libjemalloc2",
            "mariadb-slap --auto-generate-sql --concurrency=4 --number-of-queries=200 > /dev/null",
            setup="mkdir -p /etc/systemd/system/mariadb.service.d; printf '[Service]\nEnvironment=LD_PRELOAD=%s\n'"
            " /usr/lib/x86_64-linux-gnu/libjemalloc.so.2 > /etc/systemd/system/mariadb.service.d/jemalloc.conf;"
            " systemctl daemon-reload",
            note="with jemalloc preloaded",
        ),
    ),
)
