-- The lease: one row for each election, and the functions that change it.
--
-- Each operation is one call of one function, so that it is one round trip, one
-- transaction, and never leaves a row locked by a client that stands still. The
-- functions say in SQL what package store/row says in Go. They answer in JSON,
-- so that an answer can gain a field without a change to what it is called by.
--
-- Times are instants: timestamptz, and intervals of microseconds alone. No time
-- zone plays a part.

create table tenure.lease (
    name        text collate "C" primary key check (octet_length(name) between 1 and 200),
    id          integer generated always as identity unique, -- names the election in locks and notifications
    format      integer not null default 1,
    token       bigint not null default 0 check (token between 0 and 4611686018427387904), -- the last one granted; never falls
    term_id     text not null default '', -- the attempt it was granted to
    holder      text not null default '',
    meta        text not null default '',
    ttl         interval not null default '0',
    expires_at  timestamptz not null default 'epoch',
    receipt     text not null default '', -- what the next renewal must present
    renewal     bigint not null default 0,
    used        text not null default '', -- the receipt that the last renewal consumed
    used_by     text not null default '', -- and the attempt that consumed it
    released    boolean not null default true, -- released or given back; term_id still names the term
    evicted     text not null default '', -- why an operator asked the term to go
    fenced_only boolean not null default false,
    wire        integer not null default 0, -- the server process whose session holds the tripwire; 0: none
    acquired_at timestamptz not null default 'epoch',
    renewed_at  timestamptz not null default 'epoch',
    burns       jsonb not null default '[]' -- burnt terms, newest first, at most 8
) with (fillfactor = 50); -- renewals stay on their page

comment on table tenure.lease is 'Who leads which election. Rows are never deleted: the token must outlive every term.';

-- For people with psql.
create view tenure.election as
select
    name,
    case when released then 'vacant' when clock_timestamp() < expires_at then 'live' else 'dead' end as state,
    token,
    holder,
    case when not released then greatest(expires_at - clock_timestamp(), interval '0') end as remaining,
    acquired_at,
    renewed_at,
    renewal,
    nullif(evicted, '') as evicted,
    coalesce(burns -> 0 ->> 'term' = term_id and (burns -> 0 ->> 'token')::bigint = token, false) as burnt,
    meta
from tenure.lease;

-- The one clock. It goes on within a transaction.
create function tenure.clock() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;

-- The small functions in SQL are of a kind that the planner puts in the place of
-- their call. Such as cannot be are in PL/pgSQL, which keeps their plans.
create function tenure.us(p_at timestamptz) returns bigint
language sql stable
as $$ select (extract(epoch from p_at) * 1000000)::bigint $$;

create function tenure.us(p_span interval) returns bigint
language sql immutable
as $$ select (extract(epoch from p_span) * 1000000)::bigint $$;

-- Whether a term stands in the way of a claim.
create function tenure.live(r tenure.lease, p_now timestamptz) returns boolean
language sql immutable
as $$ select not r.released and p_now < r.expires_at $$;

create function tenure.burnt(r tenure.lease) returns boolean
language sql immutable
as $$ select coalesce(r.burns -> 0 ->> 'term' = r.term_id and (r.burns -> 0 ->> 'token')::bigint = r.token, false) $$;

-- What every operation begins with. A node that takes no writes may lag, so it
-- answers nothing about leases. What is answered must outlive a crash of the
-- server. A wait for a locked row ends with the caller's patience, so that a
-- request that nobody waits for is not carried out late.
create function tenure.ready(p_wait integer) returns void
language plpgsql
as $$
begin
    if current_setting('transaction_read_only')::boolean then
        raise exception 'this node takes no writes' using errcode = 'read_only_sql_transaction';
    end if;
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    perform set_config('lock_timeout', greatest(p_wait, 1)::text, true);
end
$$;

-- Announcements are hints to those who wait: the first letter says what happened,
-- see watch.go. A full queue of notifications fails the transaction that wants to
-- add to it; the caller then asks again without hints.
create function tenure.announce(p_text text) returns void
language plpgsql
as $$
begin
    perform pg_notify('tenure', p_text);
end
$$;

-- The tripwire is a lock of the holder's session: 1413828177 is its class, the
-- row's id its number. wire takes it once, however often it is called; unwire
-- returns it, however often it was taken (a session's lock outlives the
-- transaction that took it, also one that failed).
create function tenure.wired(p_id integer) returns boolean
language sql volatile
as $$
    select exists (
        select from pg_catalog.pg_locks
        where locktype = 'advisory' and classid = 1413828177 and objid = p_id::oid and objsubid = 2 and granted
          and pid = pg_catalog.pg_backend_pid()
          and database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
    )
$$;

-- p_fresh: this transaction itself just took the lock, for its own length.
create function tenure.wire(p_id integer, p_fresh boolean) returns boolean
language plpgsql
as $$
begin
    if not p_fresh and tenure.wired(p_id) then
        return true;
    end if;
    return pg_try_advisory_lock(1413828177, p_id);
end
$$;

create function tenure.unwire(p_id integer) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    while tenure.wired(p_id) loop
        perform pg_advisory_unlock(1413828177, p_id);
    end loop;
end
$$;

-- The right that an answer conveys, to its holder alone.
create function tenure.granted(p_code text, r tenure.lease, p_attempt text, p_now timestamptz) returns json
language sql volatile
as $$
    select json_build_object(
        'code', p_code, 'attempt', p_attempt, 'now', tenure.us(p_now), 'nonce', gen_random_uuid(), 'id', r.id,
        'term', r.term_id, 'token', r.token, 'receipt', r.receipt, 'renewal', r.renewal, 'ttl', tenure.us(r.ttl), 'wire', r.wire)
$$;

-- Why there is none.
create function tenure.refused(p_code text, r tenure.lease, p_attempt text, p_now timestamptz) returns json
language sql volatile
as $$
    select json_build_object(
        'code', p_code, 'attempt', p_attempt, 'now', tenure.us(p_now), 'nonce', gen_random_uuid(), 'id', r.id,
        'token', r.token, 'renewal', r.renewal, 'holder', r.holder, 'left', tenure.us(r.expires_at - p_now), 'burnt', tenure.burnt(r),
        'evicted', r.evicted, 'format', r.format, 'wire', r.wire)
$$;

-- The record as people may see it.
create function tenure.record(r tenure.lease, p_now timestamptz) returns json
language sql volatile
as $$
    select json_build_object(
        'code', 'record', 'now', tenure.us(p_now), 'nonce', gen_random_uuid(), 'id', r.id, 'format', r.format,
        'name', r.name, 'token', r.token, 'term', r.term_id, 'holder', r.holder, 'meta', r.meta, 'renewal', r.renewal,
        'ttl', tenure.us(r.ttl), 'left', tenure.us(r.expires_at - p_now), 'released', r.released, 'evicted', r.evicted,
        'acquired', tenure.us(r.acquired_at), 'renewed', tenure.us(r.renewed_at), 'fenced_only', r.fenced_only, 'wire', r.wire,
        'burns', r.burns)
$$;

-- acquire grants the election if it may. p_ttl is in microseconds, p_wait in
-- milliseconds. p_session is the caller's server process if this session may hold
-- the tripwire, else 0: behind a pooler it is another one's.
--
-- The row is read before it is locked: those who wait, be they many or frozen,
-- stay out of the holder's way.
create function tenure.acquire(
    p_name text, p_holder text, p_attempt text, p_ttl bigint, p_meta text, p_floor bigint,
    p_fenced_only boolean, p_on_disconnect boolean, p_session integer, p_hint boolean, p_wait integer
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    r        tenure.lease;
    v_locked boolean := false;
    v_now    timestamptz;
    v_gone   boolean := false; -- the holder's connection is
    v_last   bigint;
begin
    perform tenure.ready(p_wait);
    loop
        if v_locked then
            select * into r from tenure.lease where name = p_name for update;
        else
            select * into r from tenure.lease where name = p_name;
        end if;
        v_now := tenure.clock(); -- after any wait for the row
        if r.id is not null then
            if r.format > 1 then
                return tenure.refused('format', r, p_attempt, v_now);
            end if;
            if r.term_id = p_attempt then
                if tenure.live(r, v_now) and r.evicted = '' and r.renewal = 0 then
                    return tenure.granted('replayed', r, p_attempt, v_now);
                end if;
                return tenure.refused('spent', r, p_attempt, v_now);
            end if;
            if tenure.live(r, v_now) and not (tenure.burnt(r) and r.fenced_only and p_fenced_only) then
                v_gone := p_on_disconnect and p_fenced_only and r.fenced_only and r.wire not in (0, pg_backend_pid())
                    and pg_try_advisory_xact_lock(1413828177, r.id);
                if not v_gone then
                    return tenure.refused('held', r, p_attempt, v_now);
                end if;
            end if;
        end if;
        v_last := greatest(r.token, p_floor);
        if v_last >= 4611686018427387904 then
            return tenure.refused('tokens', r, p_attempt, v_now);
        end if;
        exit when v_locked and r.id is not null;
        if r.id is null then
            insert into tenure.lease (name) values (p_name) on conflict do nothing;
        end if;
        v_locked := true;
    end loop;

    if r.token > 0 and not r.released then
        perform tenure.note(p_name, 'expired', r.token, r.term_id, r.holder, v_now,
            case when v_gone then 'its connection was gone' when r.evicted <> '' then 'after an eviction' else '' end);
    end if;
    r.format := 1;
    r.token := v_last + 1;
    r.term_id := p_attempt;
    r.holder := p_holder;
    r.meta := p_meta;
    r.ttl := p_ttl * interval '1 microsecond';
    r.expires_at := v_now + r.ttl;
    r.receipt := '0.' || p_attempt;
    r.renewal := 0;
    r.used := '';
    r.used_by := '';
    r.released := false;
    r.evicted := '';
    r.fenced_only := p_fenced_only;
    r.acquired_at := v_now;
    r.renewed_at := v_now;
    r.wire := 0;
    if p_on_disconnect and p_session = pg_backend_pid() and tenure.wire(r.id, v_gone) then
        r.wire := p_session;
    end if;
    perform tenure.save(r);
    perform tenure.note(p_name, 'granted', r.token, r.term_id, r.holder, v_now,
        'from ' || coalesce(host(inet_client_addr()), 'this host'));
    perform tenure.prune(p_name, r.token, v_now);
    if p_hint then
        perform tenure.announce(format('g %s:%s %s %s', r.id, p_ttl, r.wire, p_name));
    end if;
    return tenure.granted('granted', r, p_attempt, v_now);
end
$$;

create function tenure.save(r tenure.lease) returns void
language plpgsql
as $$
begin
    update tenure.lease set
        format = r.format, token = r.token, term_id = r.term_id, holder = r.holder, meta = r.meta, ttl = r.ttl, expires_at = r.expires_at,
        receipt = r.receipt, renewal = r.renewal, used = r.used, used_by = r.used_by, released = r.released, evicted = r.evicted,
        fenced_only = r.fenced_only, wire = r.wire, acquired_at = r.acquired_at, renewed_at = r.renewed_at, burns = r.burns
    where name = r.name;
end
$$;

-- The burn of a term, or null.
create function tenure.burn_of(r tenure.lease, p_term text, p_token bigint) returns jsonb
language sql immutable
as $$
    select b.burn
    from jsonb_array_elements(r.burns) with ordinality as b (burn, n)
    where b.burn ->> 'term' = p_term and (b.burn ->> 'token')::bigint = p_token
    order by b.n
    limit 1
$$;

-- Why a term is not the row's, or null. A row that does not exist is all null.
create function tenure.disowned(r tenure.lease, p_term text, p_token bigint) returns text
language sql immutable
as $$
    select case
        when r.id is null then 'no-record'
        when r.format > 1 then 'format'
        when r.burns <> '[]' and tenure.burn_of(r, p_term, p_token) is not null then 'cloned'
        when r.term_id <> p_term or r.token <> p_token then 'superseded'
    end
$$;

-- renew renews each lease of the batch, or burns its term, and answers each with
-- its number in the batch. An entry of the batch is {"name", "term", "token",
-- "receipt", "renewal", "attempt", "wire"}; the last asks for the tripwire.
--
-- With p_skip, a row that somebody else has locked is answered 'busy' instead of
-- being waited for, so that it holds up no other. The order of names keeps two
-- batches from getting in each other's way more than once.
create function tenure.renew(p_batch json, p_skip boolean, p_session integer, p_hint boolean, p_wait integer) returns setof json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    e      record;
    r      tenure.lease;
    v_now  timestamptz;
    v_code text;
    v_burn jsonb;
    v_text text := 'r';
begin
    perform tenure.ready(p_wait);
    for e in
        select b.n, x.*
        from json_array_elements(p_batch) with ordinality as b (entry, n),
            json_to_record(b.entry) as x (name text, term text, token bigint, receipt text, renewal bigint, attempt text, wire boolean)
        order by x.name collate "C", b.n
    loop
        if p_skip then
            select * into r from tenure.lease where name = e.name for update skip locked;
        else
            select * into r from tenure.lease where name = e.name for update;
        end if;
        v_now := tenure.clock(); -- after any wait for the row
        v_burn := null;
        v_code := tenure.disowned(r, e.term, e.token);
        case
            when v_code = 'no-record' then
                if p_skip and exists (select from tenure.lease where name = e.name) then
                    v_code := 'busy';
                end if;
            when v_code = 'cloned' then
                v_burn := tenure.burn_of(r, e.term, e.token);
            when v_code is not null then
                null;
            when r.released then
                v_code := 'released';
            when r.evicted <> '' then
                v_code := 'evicted';
            when v_now >= r.expires_at then
                v_code := 'expired';
            when e.receipt = r.receipt then
                v_code := 'renewed';
                r.used := r.receipt;
                r.used_by := e.attempt;
                r.renewal := r.renewal + 1;
                r.receipt := r.renewal || '.' || e.attempt;
                r.expires_at := v_now + r.ttl;
                r.renewed_at := v_now;
                if e.wire then
                    r.wire := 0;
                    if p_session = pg_backend_pid() and tenure.wire(r.id, false) then
                        r.wire := p_session;
                    end if;
                end if;
                perform tenure.save(r);
                v_text := format('%s %s:%s', v_text, r.id, tenure.us(r.ttl));
                if length(v_text) > 7000 then -- a notification has at most 8000 bytes
                    if p_hint then
                        perform tenure.announce(v_text);
                    end if;
                    v_text := 'r';
                end if;
            when r.renewal = 0 or e.receipt <> r.used then
                -- Before the first renewal nothing was consumed: an empty receipt is none.
                v_code := 'receipt';
            when e.attempt = r.used_by then
                v_code := 'replayed';
            else
                v_code := 'cloned';
                v_burn := jsonb_build_object('term', r.term_id, 'token', r.token, 'receipt', e.receipt,
                    'first', r.used_by, 'second', e.attempt, 'at', tenure.us(v_now));
                r.burns := jsonb_build_array(v_burn) || (r.burns - 7);
                perform tenure.save(r);
                perform tenure.note(r.name, 'burnt', r.token, r.term_id, r.holder, v_now,
                    format('receipt %s was presented by attempt %s and again by attempt %s', e.receipt, r.used_by, e.attempt));
                if p_hint then
                    perform tenure.announce('c ' || r.id);
                end if;
        end case;
        if v_code in ('superseded', 'expired', 'receipt') then
            perform tenure.note_refused(r, e.term, e.token, e.renewal, v_code, v_now);
        end if;
        return next json_build_object('n', e.n, 'burn', v_burn, 'answer', case
            when v_code in ('renewed', 'replayed') then tenure.granted(v_code, r, e.attempt, v_now)
            else tenure.refused(v_code, r, e.attempt, v_now)
        end);
    end loop;
    if p_hint and v_text <> 'r' then
        perform tenure.announce(v_text);
    end if;
end
$$;

-- release frees the term. p_pending is the renewal that is under way, or empty.
create function tenure.release(
    p_name text, p_term text, p_token bigint, p_receipt text, p_pending text, p_session integer, p_hint boolean, p_wait integer
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    r      tenure.lease;
    v_now  timestamptz;
    v_code text;
begin
    perform tenure.ready(p_wait);
    select * into r from tenure.lease where name = p_name for update;
    v_now := tenure.clock();
    v_code := tenure.disowned(r, p_term, p_token);
    if v_code = 'cloned' then
        return json_build_object('answer', tenure.refused(v_code, r, '', v_now), 'burn', tenure.burn_of(r, p_term, p_token));
    elsif v_code is null and not r.released then
        if p_receipt = r.receipt or p_pending <> '' and p_receipt = r.used and p_pending = r.used_by then
            perform tenure.free(r, v_now, p_session, p_hint);
        else
            v_code := 'receipt';
        end if;
    end if;
    return json_build_object('answer', tenure.refused(coalesce(v_code, 'ok'), r, '', v_now));
end
$$;

-- abandon frees the grant of an attempt, if it was never renewed. It reads before
-- it locks: as a rule there is nothing to give back.
create function tenure.abandon(p_name text, p_attempt text, p_session integer, p_hint boolean, p_wait integer) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    r     tenure.lease;
    v_now timestamptz;
begin
    perform tenure.ready(p_wait);
    select * into r from tenure.lease where name = p_name;
    if r.id is not null and r.format <= 1 and r.term_id = p_attempt and r.renewal = 0 and not r.released then
        select * into r from tenure.lease where name = p_name for update;
    end if;
    v_now := tenure.clock();
    if r.format > 1 then
        return json_build_object('answer', tenure.refused('format', r, p_attempt, v_now));
    end if;
    if r.id is not null and r.term_id = p_attempt and r.renewal = 0 and not r.released then
        perform tenure.free(r, v_now, p_session, p_hint);
    end if;
    return json_build_object('answer', tenure.refused('ok', r, p_attempt, v_now));
end
$$;

create function tenure.free(r tenure.lease, p_now timestamptz, p_session integer, p_hint boolean) returns void
language plpgsql
as $$
begin
    if p_session = pg_backend_pid() then
        perform tenure.unwire(r.id);
    end if;
    r.released := true;
    r.wire := 0;
    perform tenure.save(r);
    perform tenure.note(r.name, 'released', r.token, r.term_id, r.holder, p_now, '');
    if p_hint then
        perform tenure.announce('v ' || r.id);
    end if;
end
$$;

-- evict marks the current term, or frees it at once. p_term: empty for whichever
-- holds it.
create function tenure.evict(p_name text, p_term text, p_reason text, p_at_once boolean, p_hint boolean, p_wait integer) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    r      tenure.lease;
    v_now  timestamptz;
    v_code text;
begin
    perform tenure.ready(p_wait);
    select * into r from tenure.lease where name = p_name for update;
    v_now := tenure.clock();
    v_code := case
        when r.id is null then 'no-record'
        when r.format > 1 then 'format'
        when not tenure.live(r, v_now) then 'vacant'
        when p_term <> '' and p_term <> r.term_id then 'superseded'
    end;
    if v_code is not null then
        return json_build_object('answer', tenure.refused(v_code, r, '', v_now));
    end if;
    if r.evicted <> p_reason then
        perform tenure.note(r.name, 'evicted', r.token, r.term_id, r.holder, v_now, case when p_at_once then 'at once: ' else '' end || p_reason);
    end if;
    r.evicted := p_reason;
    if p_at_once then
        r.expires_at := v_now;
    end if;
    perform tenure.save(r);
    if p_hint then
        perform tenure.announce(case when p_at_once then 'v ' else 'c ' end || r.id);
    end if;
    return tenure.record(r, v_now);
end
$$;

-- get reads one record, or null.
create function tenure.get(p_name text, p_wait integer) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.ready(p_wait);
    return (select tenure.record(l, tenure.clock()) from tenure.lease l where l.name = p_name);
end
$$;

-- list reads all records, or those of a JSON array of names, as they were at one
-- moment.
create function tenure.list(p_names json, p_wait integer) returns setof json
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := tenure.clock();
begin
    perform tenure.ready(p_wait);
    if p_names is null then
        return query select tenure.record(l, v_now) from tenure.lease l order by l.name;
    else
        return query select tenure.record(l, v_now) from json_array_elements_text(p_names) as n (name) join tenure.lease l using (name);
    end if;
end
$$;

-- await waits until the tripwire of an election is cut, at most p_wait
-- milliseconds, for one caller at a time: 1413828178 is the class of the queue's
-- only place. Both locks end with the call. It answers 'cut', 'stands' or
-- 'queued' (another one waits).
create function tenure.await(p_id integer, p_wait integer) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.ready(p_wait);
    if not pg_try_advisory_xact_lock(1413828178, p_id) then
        return 'queued';
    end if;
    perform pg_advisory_xact_lock(1413828177, p_id);
    return 'cut';
exception when lock_not_available then
    return 'stands';
end
$$;

-- What session keeps a row locked, for people; null if it cannot be told.
create function tenure.blocker(p_name text) returns text
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    select format('server process %s (%s, from %s), in a transaction for %s', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
        coalesce(host(a.client_addr), 'this host'), date_trunc('milliseconds', clock_timestamp() - a.xact_start))
    from tenure.lease r
    join pg_locks l on l.locktype = 'transactionid' and l.transactionid = r.xmax and l.granted
    join pg_stat_activity a on a.pid = l.pid
    where r.name = p_name
    limit 1
$$;
