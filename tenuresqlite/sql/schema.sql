-- Everything of Tenure in a database file. The file may be the job's own, so
-- every name begins with tenure_, and nothing is used that an older SQLite of
-- another program could not read (no STRICT tables: they would make it refuse
-- the whole file).
--
-- What users name is a blob: it is kept byte for byte whatever the encoding of
-- the file. Times are whole nanoseconds: expires_ns by the clock that the column
-- clock names, the others since 1970, for people only.

create table if not exists tenure_meta (
	key   text primary key,
	value integer not null
) without rowid;

insert into tenure_meta (key, value) values ('schema', 1) on conflict do nothing;

create table if not exists tenure_lease (
	name        blob primary key check (typeof(name) = 'blob'),
	format      integer not null,
	token       integer not null,
	term_id     text    not null,
	holder      blob    not null,
	meta        blob    not null,
	ttl_ns      integer not null,
	expires_ns  integer not null,
	clock       text    not null, -- boot id and identity of the file it was written under
	adopted     integer not null, -- 1: its expiry counts from when another clock's record was first seen
	receipt     text    not null,
	renewal     integer not null,
	used        text    not null,
	used_by     text    not null,
	released    integer not null,
	evicted     blob    not null,
	fenced_only integer not null,
	acquired_ns integer not null,
	renewed_ns  integer not null,
	burns       text    not null  -- JSON, newest first
) without rowid;

-- A row that somebody deletes by hand leaves this behind, so that its token does
-- not fall and its holder is not overrun.
create table if not exists tenure_removed (
	name     blob primary key,
	token    integer not null,
	term_id  text    not null,
	holder   blob    not null,
	ttl_ns   integer not null,
	released integer not null
) without rowid;

create trigger if not exists tenure_lease_removed after delete on tenure_lease begin
	insert or replace into tenure_removed (name, token, term_id, holder, ttl_ns, released)
	values (old.name, old.token, old.term_id, old.holder, old.ttl_ns, old.released);
end;

create table if not exists tenure_history (
	id      integer primary key,
	name    blob    not null,
	at_ns   integer not null,
	what    text    not null,
	token   integer not null,
	term_id text    not null,
	holder  blob    not null,
	detail  blob    not null
);

create index if not exists tenure_history_name on tenure_history (name, id);
