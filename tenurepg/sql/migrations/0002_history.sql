-- The history of elections: who held which token when, from where, how each term
-- ended, twins and refusals.

create table tenure.history (
    id      bigint generated always as identity primary key,
    name    text collate "C" not null,
    at      timestamptz not null,
    what    text not null, -- granted, released, expired, burnt, evicted, refused
    token   bigint not null,
    term_id text not null,
    holder  text not null,
    detail  text not null
);
create index history_name on tenure.history (name, id);

-- How much of it is kept. There is one row; change it as you like.
create table tenure.setting (
    one         boolean primary key default true check (one),
    history_age interval not null default '90 days' check (history_age > interval '0'),
    history_max integer not null default 1000 check (history_max > 0) -- lines of each election, and up to a hundred more
);
insert into tenure.setting default values;

create function tenure.note(
    p_name text, p_what text, p_token bigint, p_term text, p_holder text, p_at timestamptz, p_detail text
) returns void
language plpgsql
as $$
begin
    insert into tenure.history (name, at, what, token, term_id, holder, detail)
    values (p_name, p_at, p_what, p_token, p_term, p_holder, p_detail);
end
$$;

-- A term that comes back after its end is worth a line, once.
create function tenure.note_refused(
    r tenure.lease, p_term text, p_token bigint, p_renewal bigint, p_why text, p_at timestamptz
) returns void
language plpgsql
as $$
declare
    v_last tenure.history;
begin
    select * into v_last from tenure.history where name = r.name order by id desc limit 1;
    if v_last.what = 'refused' and v_last.token = p_token and v_last.term_id = p_term then
        return;
    end if;
    perform tenure.note(r.name, 'refused', p_token, p_term, case when p_term = r.term_id then r.holder else '' end, p_at,
        format('a renewal with receipt %s: %s', p_renewal, p_why));
end
$$;

-- prune drops what is beyond the setting, of one election, whose row the caller
-- has locked: what is too old at every grant, what is too much at every 32nd, since
-- that has to be counted.
create function tenure.prune(p_name text, p_token bigint, p_now timestamptz) returns void
language plpgsql
as $$
declare
    s        tenure.setting;
    v_oldest timestamptz;
    v_first  bigint;
begin
    select * into s from tenure.setting;
    select at into v_oldest from tenure.history where name = p_name order by id limit 1;
    if v_oldest < p_now - s.history_age then
        delete from tenure.history where name = p_name and at < p_now - s.history_age;
    end if;
    if p_token % 32 = 0 then
        select id into v_first from tenure.history where name = p_name order by id desc offset s.history_max - 1 limit 1;
        delete from tenure.history where name = p_name and id < v_first;
    end if;
end
$$;

-- past reads the newest p_n lines of an election, newest first.
create function tenure.past(p_name text, p_n integer, p_wait integer) returns setof json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.ready(p_wait);
    return query
        select json_build_object('at', tenure.us(h.at), 'what', h.what, 'token', h.token, 'term', h.term_id, 'holder', h.holder, 'detail', h.detail)
        from tenure.history h, tenure.setting s
        where h.name = p_name and h.at >= tenure.clock() - s.history_age
        order by h.id desc
        limit least(greatest(p_n, 0), (select history_max from tenure.setting));
end
$$;

-- grant_elect lets a role contend for elections and lead. It can write to no table
-- itself, so it cannot set a token back.
create function tenure.grant_elect(role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.grant_look(role);
    execute format('grant execute on function tenure.acquire, tenure.renew, tenure.release, tenure.abandon, tenure.await, tenure.unwire, tenure.blocker to %I', role);
end
$$;

-- grant_look lets a role see who leads, and the history.
create function tenure.grant_look(role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('grant usage on schema tenure to %I', role);
    execute format('grant execute on function tenure.get, tenure.list, tenure.past to %I', role);
    execute format('grant select on tenure.election, tenure.history, tenure.setting, tenure.schema_version to %I', role);
end
$$;

-- grant_evict lets a role end terms: that of an operator.
create function tenure.grant_evict(role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.grant_look(role);
    execute format('grant execute on function tenure.evict to %I', role);
end
$$;

-- Nobody may call anything in this schema until it is granted: the functions run
-- with their owner's rights, and PostgreSQL lets everybody call a new one.
revoke all on all functions in schema tenure from public;
