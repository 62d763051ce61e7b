# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Command lines of services and tools as people write them, with secrets where they put them: none is kept."""

from __future__ import annotations

import shlex

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line

SECRETS = [
    "geheim",
    "AKIAGEHEIM7EXAMPLE",
    "ghp_geheim0123456789abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.geheim.c2lnbmF0dXJl",
    "geheim/wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY=",
    "p@ss:geheim!",
    "-geheim",
]
LINES = """
curl -s -u admin:{} https://api.test/v1
curl --header 'Authorization: Bearer {}' https://api.test
curl -H X-Api-Key:{} https://api.test
curl -b session={} https://api.test
curl 'https://storage.test/blob?sv=2021&sig={}'
curl https://user:{}@api.test/
wget --http-password={} https://api.test
wget --header=Cookie:{} https://api.test
redis-server *:6379 --requirepass {} --masterauth {}
redis-cli -a {} ping
redis-cli --pass {} ping
mysql -uroot -p{} db
mysqldump --password={} --user root db
mysqld --defaults-file=/etc/my.cnf --init-connect={}
psql postgresql://app:{}@db/app
psql 'host=db password={}'
pg_dump --dbname=postgres://u:{}@db/x
mongod --keyFile /etc/key --setParameter authSchemaPassword={}
mongosh -u admin -p {} db
java -jar /srv/app.jar --spring.datasource.password={}
java -Djavax.net.ssl.keyStorePassword={} -jar /srv/app.jar
java -Ddb.password={} -cp /opt/a.jar com.example.Main
java -cp /opt/a.jar com.example.Main --jwt {}
java -cp /opt/a.jar com.example.Main {}
java -XX:OnOutOfMemoryError='notify {}' -jar /srv/app.jar
java -javaagent:/opt/agent.jar=token={} -jar /srv/app.jar
java -Xlog:gc:file={} com.example.Main
java -agentlib:jdwp={} com.example.Main
java --add-opens {} com.example.Main
python3 /srv/app.py --token {}
python3 /srv/app.py --token={}
python3 /srv/app.py {}
python3 -m gunicorn -b :80 -e API_KEY={} app:app
python3 -m celery -A app -b amqp://guest:{}@mq//
python3 -c "login('{}')"
python3 -W {} /srv/app.py
node /srv/server.js --cookie-secret={}
node --require {} /srv/server.js
node --experimental-loader {} /srv/server.js
node -e "login('{}')"
npm start --//registry/:_authToken={}
ruby /srv/app.rb -k {}
perl /srv/job.pl {}
perl -e 'login("{}")'
php /srv/job.php pw={}
sh -c 'PGPASSWORD={} psql -h db'
bash -c 'exec app --api-key {}'
env TOKEN={} app
sudo -u app env SECRET={} /srv/app
docker run -e DB_PASS={} app
podman login -u me -p {} registry.test
kubectl --token={} get pods
vault login {}
consul agent -encrypt={}
etcd --auth-token {}
prometheus --web.config.file=/etc/p.yml --storage.remote.token={}
grafana-server cfg:default.security.admin_password={}
vmagent -remoteWrite.bearerToken={}
filebeat -E output.elasticsearch.password={}
telegraf --token {}
fluentd -c /etc/fluent.conf -i '@type x {}'
haproxy -f /etc/haproxy.cfg -S /run/h.sock,{}
openvpn --auth-user-pass {}
sshpass -p {} ssh host
sshpass -p{} ssh host
rsync --password-file={} a b
rclone --s3-secret-access-key {} ls x:
aws --secret-key {} s3 ls
restic -r s3:https://KEY:{}@s3.test/b backup
minio server /data --secret-key {}
smbclient //host/share -U user%{}
ldapsearch -D cn=admin -w {} -b dc=x
snmpwalk -c {} -v2c host
snmpd -LOw -u x -c{}
mosquitto_pub -u user -P {} -t t -m hello
rabbitmqctl add_user me {}
slapd -h ldap:/// -o password={}
stunnel -p {}
openssl enc -pass pass:{}
openssl enc -k {}
gpg --passphrase {} -d x
zip -P {} a.zip b
7z x -p{} a.7z
ffmpeg -decryption_key {} -i in.mp4
squid -N -f /etc/squid.conf --auth {}
caddy run --envfile={}
traefik --pilot.token={}
ansible-playbook site.yml -e db_password={}
terraform apply -var=token={}
git clone https://oauth2:{}@git.test/x
git -c http.extraHeader='AUTHORIZATION: basic {}' fetch
gunicorn: worker [{}]
postgres: app {} [local] SELECT
nginx: worker {}
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_no_secret_of_it_is_kept(line: str) -> None:
    title = line.partition(" ")[0].endswith(":")
    for secret in SECRETS:
        words = [line.replace("{}", secret)] if title else [word.replace("{}", secret) for word in shlex.split(line)]
        kept = command_line.known_words(words)
        assert words != kept and len(words) == len(kept)
        assert "geheim" not in "".join(kept).lower(), kept
        assert kept[0].split()[0] == words[0].split()[0], "the program is"
