-- SPDX-License-Identifier: GPL-3.0-or-later
-- SPDX-FileCopyrightText: Offheap contributors
-- A session that keeps what it has prepared, once its process is sampled.
select pg_sleep(5);
select format('prepare kept_%s as select relname from pg_class where relpages > %s', one, one)
from generate_series(1, 1500) as one \gexec
select pg_sleep(600);
