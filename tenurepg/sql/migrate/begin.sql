-- Before the migrations: one at a time, and a table that says which were applied.
-- 1413828180 is the class of the lock.
select pg_catalog.pg_advisory_xact_lock(1413828180, 0);
create schema if not exists tenure;
create table if not exists tenure.schema_version (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default pg_catalog.clock_timestamp()
);
grant select on tenure.schema_version to public;
