-- The fence: the check at the resource, for whatever is written to this database,
-- called from any language in the transaction that writes. The rule is that of
-- package fence.
--
-- What a resource remembers is changed by whoever holds its lock alone. The lock
-- is an advisory one of the transaction: 1413828179 is its class, the mark's id
-- its number. A write under the token that was seen takes it shared, so a leader's
-- writers do not wait for each other; a higher token takes it alone, so it waits
-- for every write that is under way, and those that come later wait behind it: a
-- stream of late writers holds up no successor. Nobody goes from the shared lock
-- to the other one, which is what would end in a deadlock.
--
-- SQLSTATEs: TN001 stale, TN002 forked, TN003 gap, TN004 invalid, TN005 replay.
-- The first three end the writer's term. DETAIL is JSON.

create table tenure.fence_mark (
    id       integer generated always as identity primary key,
    resource text collate "C" not null unique check (octet_length(resource) between 1 and 200),
    token    bigint not null default 0 check (token between 0 and 4611686018427387904), -- the highest accepted; 0: none
    term_id  text collate "C" not null default '', -- the first seen under it; empty: none yet
    renewal  bigint not null default 0, -- the highest that entered
    seen_at  timestamptz not null default 'epoch' -- when the token was first seen
) with (fillfactor = 50);

comment on table tenure.fence_mark is 'What each fenced resource has seen. Rows are never deleted: a mark outlives every term.';

-- There is no foreign key: checking it would lock the mark's row.
create table tenure.fence_lane (
    mark_id  integer not null,
    lane     text collate "C" not null,
    token    bigint not null, -- of the last write, with its position and digest
    position bigint not null,
    digest   text collate "C" not null,
    primary key (mark_id, lane)
) with (fillfactor = 50);

-- What operators did by hand.
create table tenure.audit (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default pg_catalog.clock_timestamp(),
    role   text not null default session_user,
    what   text not null,
    name   text not null, -- of the resource or the election
    reason text not null,
    detail jsonb not null default '{}'
);

create function tenure.note_audit(p_what text, p_name text, p_reason text, p_detail jsonb) returns void
language plpgsql
as $$
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'tenure: a reason is missing: it is kept in the table tenure.audit' using errcode = 'TN004';
    end if;
    insert into tenure.audit (what, name, reason, detail) values (p_what, p_name, p_reason, p_detail);
end
$$;

-- What is wrong with a text, or null. Texts are compared byte for byte.
create function tenure.fence_fault(p_what text, p_text text, p_most integer) returns text
language plpgsql immutable
as $$
begin
    if octet_length(p_text) not between 1 and p_most then
        return format('%s has %s bytes: allowed are 1 to %s bytes without control characters', p_what, octet_length(p_text), p_most);
    elsif p_text ~ '[\u0001-\u001f\u007f-\u009f]' then
        return format('%s has a control character: allowed are 1 to %s bytes without control characters', p_what, p_most);
    end if;
    return null;
end
$$;

-- A duration in a setting: a number alone is milliseconds, as everywhere in
-- PostgreSQL.
create function tenure.span(p_text text) returns interval
language sql stable
as $$ select case when p_text ~ '^[0-9]+$' then p_text || 'ms' else p_text end::interval $$;

-- fence_bound sets bounds for the rest of the transaction, so that a leader which
-- is frozen, or cut off, in the middle of it holds up its successor no longer: the
-- server ends the transaction if the client sends nothing for so long, or takes
-- nothing of what it is sent (tcp_user_timeout). A shorter time stays as it is.
-- The setting tenure.fence_idle, of a database or a role, changes it; 0 is none.
create function tenure.fence_bound() returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_idle interval := tenure.span(coalesce(nullif(current_setting('tenure.fence_idle', true), ''), '10s'));
    v_now  text := current_setting('idle_in_transaction_session_timeout');
begin
    if v_idle > '0' and (v_now = '0' or v_now::interval > v_idle) then
        perform set_config('idle_in_transaction_session_timeout', (extract(epoch from v_idle) * 1000)::bigint::text, true);
    end if;
    v_now := current_setting('tcp_user_timeout'); -- shown without a unit
    if v_idle > '0' and (v_now = '0' or tenure.span(v_now) > v_idle) and version() like '%linux%' then
        perform set_config('tcp_user_timeout', (extract(epoch from v_idle) * 1000)::bigint::text, true);
    end if;
end
$$;

-- fence_wait bounds the waits for locks that follow, and returns the setting to
-- put back afterwards. The setting tenure.fence_wait changes the bound.
create function tenure.fence_wait() returns text
language plpgsql
as $$
declare
    v_wait interval := tenure.span(coalesce(nullif(current_setting('tenure.fence_wait', true), ''), '15s'));
    v_old  text := current_setting('lock_timeout');
begin
    if v_old = '0' or v_old::interval > v_wait then
        perform set_config('lock_timeout', greatest(extract(epoch from v_wait) * 1000, 1)::bigint::text, true);
    end if;
    return v_old;
end
$$;

-- fence_lock takes the lock of a mark until the transaction ends.
create function tenure.fence_lock(p_id integer, p_alone boolean) returns void
language plpgsql
as $$
declare
    v_old text;
begin
    -- Neither succeeds if somebody waits already.
    if (case when p_alone then pg_try_advisory_xact_lock(1413828179, p_id) else pg_try_advisory_xact_lock_shared(1413828179, p_id) end) then
        return;
    end if;
    v_old := tenure.fence_wait();
    if p_alone then
        perform pg_advisory_xact_lock(1413828179, p_id);
    else
        perform pg_advisory_xact_lock_shared(1413828179, p_id);
    end if;
    perform set_config('lock_timeout', v_old, true);
end
$$;

-- A node that takes no writes, a standby or a primary that was demoted, may lag: it
-- answers nothing about marks.
create function tenure.fence_primary() returns void
language plpgsql
as $$
begin
    if current_setting('transaction_read_only')::boolean then
        raise exception 'tenure: the transaction is read-only: this node takes no writes and may lag, or the transaction was begun so' using errcode = 'read_only_sql_transaction';
    end if;
end
$$;

create function tenure.fence_refuse(p_code text, p_text text, p_detail jsonb) returns void
language plpgsql
as $$
begin
    raise exception using
        errcode = p_code, message = 'tenure: ' || p_text, detail = p_detail::text,
        hint = case p_code
            when 'TN004' then 'The stamp is malformed; nothing was checked.'
            when 'TN005' then 'This write is there already: roll back and report success.'
            else 'This term is over: stop its work and write nothing more under its token.'
        end;
end
$$;

-- fence_check checks a stamp against the resource's mark and keeps the new mark, in
-- this transaction. It returns the mark as it was. The caller has checked that the
-- stamp is well-formed.
--
-- A write does not raise the number of renewals, only p_enter does: it would need
-- the lock alone in a transaction that may have it shared already.
create function tenure.fence_check(p_enter boolean, p_resource text, p_token bigint, p_term text, p_renewal bigint) returns tenure.fence_mark
language plpgsql
as $$
declare
    m         tenure.fence_mark;
    v_changed boolean; -- this version of the row was changed by somebody, who may have been rolled back
    v_alone   boolean;
    v_held    boolean; -- null: no lock yet; else whether it is ours alone
    v_old     text;
begin
    perform tenure.fence_primary();
    loop
        select * into m from tenure.fence_mark where resource = p_resource;
        if m.id is null then
            v_old := tenure.fence_wait();
            insert into tenure.fence_mark (resource) values (p_resource) on conflict do nothing;
            perform set_config('lock_timeout', v_old, true);
            continue;
        end if;

        if p_token < m.token then
            perform tenure.fence_refuse('TN001',
                format('resource "%s" refused stale token %s: a higher token was seen (seen %s)', p_resource, p_token, m.token),
                jsonb_build_object('kind', 'stale', 'resource', p_resource, 'token', p_token, 'seen', m.token, 'why', 'a higher token was seen'));
        elsif p_token = m.token and p_term <> '' and m.term_id <> '' then
            if p_term <> m.term_id then
                perform tenure.fence_refuse('TN002',
                    format('resource "%s" refused token %s of term "%s": another term owns this token (known term "%s")', p_resource, p_token, p_term, m.term_id),
                    jsonb_build_object('kind', 'forked', 'resource', p_resource, 'token', p_token, 'term', p_term, 'owner', m.term_id, 'why', 'another term owns this token'));
            elsif p_renewal < m.renewal - 1 then
                perform tenure.fence_refuse('TN001',
                    format('resource "%s" refused stale token %s: the same term was seen with later renewals (renewal %s, seen %s)', p_resource, p_token, p_renewal, m.renewal),
                    jsonb_build_object('kind', 'stale', 'resource', p_resource, 'token', p_token, 'seen', m.token,
                        'renewal', p_renewal, 'seen_renewal', m.renewal, 'why', 'the same term was seen with later renewals'));
            end if;
        end if;

        -- A token or an owner that is new is kept; a later renewal of the owner is,
        -- too, beside its writes that are under way.
        v_alone := p_token > m.token or p_term <> '' and m.term_id = '';
        exit when v_held or v_held = v_alone;
        perform tenure.fence_lock(m.id, v_alone);
        v_held := v_alone;
    end loop;

    if v_alone then
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true); -- the mark must outlive a crash
        end if;
        -- Above READ COMMITTED this fails if the row is newer than what was read.
        update tenure.fence_mark
        set token = p_token, term_id = p_term, renewal = p_renewal, seen_at = case when token = p_token then seen_at else pg_catalog.clock_timestamp() end
        where id = m.id;
        return m;
    end if;
    if p_enter and p_term <> '' and p_renewal > m.renewal then
        v_old := tenure.fence_wait();
        update tenure.fence_mark set renewal = p_renewal where id = m.id and token = p_token and term_id = p_term and renewal < p_renewal;
        perform set_config('lock_timeout', v_old, true);
        return m;
    end if;
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        -- What was read is as of the transaction's beginning. If the row was changed
        -- since, its xmax tells, and to lock it fails (40001).
        select xmax <> '0'::xid into v_changed from tenure.fence_mark where id = m.id;
        if v_changed then
            v_old := tenure.fence_wait();
            perform from tenure.fence_mark where id = m.id for share;
            perform set_config('lock_timeout', v_old, true);
        end if;
    end if;
    return m;
end
$$;

-- fence_stamp raises TN004 for a stamp that is malformed.
create function tenure.fence_stamp(p_resource text, p_token bigint, p_term text, p_renewal bigint) returns void
language plpgsql
as $$
declare
    v_faults text := concat_ws('; ',
        tenure.fence_fault('resource', p_resource, 200),
        case when p_token not between 1 and 4611686018427387904 then format('token is %s: allowed are 1 to 4611686018427387904', p_token) end,
        case when p_term <> '' then tenure.fence_fault('term', p_term, 64) end,
        case when p_renewal < 0 then format('renewal is %s: allowed are 0 and more', p_renewal) end);
begin
    if v_faults <> '' then
        perform tenure.fence_refuse('TN004', 'invalid stamp: ' || v_faults, jsonb_build_object('kind', 'invalid', 'why', v_faults));
    end if;
end
$$;

-- enter lets a term into a resource, before it reads or writes there, and again
-- after each renewal before its next write. It must be a transaction of its own,
-- so that it is committed whatever becomes of what follows.
create function tenure.enter(resource text, token bigint, term text default '', renewal bigint default 0) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    resource := coalesce(resource, '');
    token := coalesce(token, 0);
    term := coalesce(term, '');
    renewal := coalesce(renewal, 0);
    perform tenure.fence_stamp(resource, token, term, renewal);
    perform tenure.fence_check(true, resource, token, term, renewal);
end
$$;

-- fence_fully is fence without its shortcut.
create function tenure.fence_fully(p_resource text, p_token bigint, p_term text, p_renewal bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    p_resource := coalesce(p_resource, '');
    p_token := coalesce(p_token, 0);
    p_term := coalesce(p_term, '');
    p_renewal := coalesce(p_renewal, 0);
    perform tenure.fence_stamp(p_resource, p_token, p_term, p_renewal);
    perform tenure.fence_bound();
    perform tenure.fence_check(false, p_resource, p_token, p_term, p_renewal);
end
$$;

-- fence checks a write, in its transaction and before anything else there.
--
-- What it does here is a shortcut for what happens nearly always: the stamp is that
-- of the mark, nobody waits for the lock, and no time-out is set. It is one
-- statement, and all names are written in full, with their schemas, also those of
-- operators: to set the search path, as the other functions do, would cost more.
--
-- The row is read twice: to lock it, and once it is locked. The second look is as of
-- the same moment, but xmax tells whether the row was changed since then; in that
-- case fence_fully takes its time.
create function tenure.fence(resource text, token bigint, term text default '', renewal bigint default 0) returns void
language plpgsql security definer
as $$
declare
    v_good boolean;
begin
    select
        l.locked
        and (
            select m.token operator(pg_catalog.=) fence.token
                and m.term_id operator(pg_catalog.=) fence.term
                and fence.renewal operator(pg_catalog.>=) 0::bigint
                and fence.renewal operator(pg_catalog.>=) (m.renewal operator(pg_catalog.-) 1::bigint)
                and m.xmax operator(pg_catalog.=) '0'::pg_catalog.xid
            from tenure.fence_mark m
            where m.id operator(pg_catalog.=) l.id
        )
        and pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'off'
        and coalesce(pg_catalog.current_setting('tenure.fence_idle', true), '') operator(pg_catalog.=) ''
        and case
            when pg_catalog.current_setting('idle_in_transaction_session_timeout') operator(pg_catalog.=) '0'
                and pg_catalog.version() operator(pg_catalog.~~) '%linux%'
            then
                pg_catalog.set_config('idle_in_transaction_session_timeout', '10000', true) is not null
                and pg_catalog.set_config('tcp_user_timeout', '10000', true) is not null
            else
                pg_catalog.current_setting('idle_in_transaction_session_timeout') operator(pg_catalog.=) '10s'
                and pg_catalog.current_setting('tcp_user_timeout') operator(pg_catalog.=) '10000'
        end
    into v_good
    from (
        select m.id, pg_catalog.pg_try_advisory_xact_lock_shared(1413828179, m.id) as locked
        from tenure.fence_mark m
        where m.resource operator(pg_catalog.=) fence.resource
          and m.token operator(pg_catalog.=) fence.token
          and m.term_id operator(pg_catalog.=) fence.term
        offset 0 -- so that the lock is taken first
    ) l;
    if v_good is not true then
        perform tenure.fence_fully(fence.resource, fence.token, fence.term, fence.renewal);
    end if;
end
$$;

-- fence_chain_replayed is fence_chain, but for a write that is there already it
-- returns true instead of raising TN005: write nothing then, and commit.
create function tenure.fence_chain_replayed(
    resource text, lane text, token bigint, "position" bigint, digest text, term text default '', renewal bigint default 0
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_faults text;
    m        tenure.fence_mark;
    v_old    text;
    l        tenure.fence_lane;
    v_last   bigint; -- the position of the last write under this token
begin
    resource := coalesce(resource, '');
    lane := coalesce(lane, '');
    token := coalesce(token, 0);
    "position" := coalesce("position", 0);
    digest := coalesce(digest, '');
    term := coalesce(term, '');
    renewal := coalesce(renewal, 0);
    v_faults := concat_ws('; ',
        case when "position" < 1 then format('position is %s: allowed are 1 and more', "position") end,
        tenure.fence_fault('digest', digest, 128),
        case when lane <> '' then tenure.fence_fault('lane', lane, 200) end);
    if v_faults <> '' then
        perform tenure.fence_refuse('TN004', 'invalid stamp: ' || v_faults, jsonb_build_object('kind', 'invalid', 'why', v_faults));
    end if;
    perform tenure.fence_stamp(resource, token, term, renewal);
    perform tenure.fence_bound();
    m := tenure.fence_check(false, resource, token, term, renewal);

    v_old := tenure.fence_wait();
    loop
        -- What happens nearly always, in one step.
        update tenure.fence_lane f set position = fence_chain_replayed.position, digest = fence_chain_replayed.digest
        where f.mark_id = m.id and f.lane = fence_chain_replayed.lane and f.token = fence_chain_replayed.token
          and f.position = fence_chain_replayed.position - 1;
        exit when found;

        select * into l from tenure.fence_lane f where f.mark_id = m.id and f.lane = fence_chain_replayed.lane for update;
        v_last := case when l.token = fence_chain_replayed.token then l.position else 0 end;
        if l.token > fence_chain_replayed.token then
            -- The resource's mark was lowered or lost.
            perform tenure.fence_refuse('TN001',
                format('resource "%s" refused stale token %s: lane "%s" was written under a higher token (seen %s)', resource, token, lane, l.token),
                jsonb_build_object('kind', 'stale', 'resource', resource, 'token', token, 'seen', l.token, 'lane', lane, 'position', "position",
                    'why', 'the lane was written under a higher token'));
        elsif "position" = v_last and digest = l.digest then
            perform set_config('lock_timeout', v_old, true);
            return true;
        elsif "position" = v_last then
            perform tenure.fence_refuse('TN002',
                format('resource "%s" refused token %s of term "%s": another write stands at position %s of lane "%s": a twin wrote it', resource, token, term, "position", lane),
                jsonb_build_object('kind', 'forked', 'resource', resource, 'token', token, 'term', term,
                    'owner', m.term_id, 'lane', lane, 'position', "position",
                    'why', 'another write stands at this position: a twin wrote it'));
        elsif "position" < v_last then
            perform tenure.fence_refuse('TN001',
                format('resource "%s" refused stale token %s: lane "%s" has gone on past position %s (next is %s)', resource, token, lane, "position", v_last + 1),
                jsonb_build_object('kind', 'stale', 'resource', resource, 'token', token, 'seen', m.token, 'lane', lane, 'position', "position",
                    'next', v_last + 1, 'why', 'the lane has gone on past this position'));
        elsif "position" - 1 > v_last then
            perform tenure.fence_refuse('TN003',
                format('resource "%s" refused position %s of lane "%s" under token %s: next is %s', resource, "position", lane, token, v_last + 1),
                jsonb_build_object('kind', 'gap', 'resource', resource, 'token', token, 'lane', lane, 'position', "position", 'next', v_last + 1));
        end if;

        -- It is the next position: the first of a lane, or of a token.
        insert into tenure.fence_lane as f (mark_id, lane, token, position, digest)
        values (m.id, fence_chain_replayed.lane, fence_chain_replayed.token, fence_chain_replayed.position, fence_chain_replayed.digest)
        on conflict on constraint fence_lane_pkey do update
        set token = excluded.token, position = excluded.position, digest = excluded.digest
        where l.mark_id is not null;
        exit when found; -- else another was first, whom the loop now sees
    end loop;
    perform set_config('lock_timeout', v_old, true);
    return false;
end
$$;

create function tenure.fence_replay(p_resource text, p_lane text, p_token bigint, p_position bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.fence_refuse('TN005',
        format('position %s of lane "%s" of resource "%s" was written before, by this same write', p_position, p_lane, p_resource),
        jsonb_build_object('kind', 'replay', 'resource', p_resource, 'token', p_token, 'lane', p_lane, 'position', p_position));
end
$$;

-- fence_chain checks a chained write, in its transaction and before anything else
-- there, and takes its position in the lane. The last write sent again raises
-- TN005, so that nothing is written twice. Names are in full, as in fence.
create function tenure.fence_chain(
    resource text, lane text, token bigint, "position" bigint, digest text, term text default '', renewal bigint default 0
) returns void
language plpgsql security definer
as $$
begin
    if tenure.fence_chain_replayed(resource, lane, token, "position", digest, term, renewal) then
        perform tenure.fence_replay(resource, lane, token, "position");
    end if;
end
$$;

-- last is what a resource remembers of a lane: one row, with zeros if it was never
-- written to.
create function tenure.last(resource text, lane text default '', out token bigint, out "position" bigint, out digest text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenure.fence_primary();
    select f.token, f.position, f.digest into token, "position", digest
    from tenure.fence_mark m join tenure.fence_lane f on f.mark_id = m.id
    where m.resource = last.resource and f.lane = coalesce(last.lane, '');
    token := coalesce(token, 0);
    "position" := coalesce("position", 0);
    digest := coalesce(digest, '');
end
$$;

-- fence_list is what resources have seen, for people: all of them, or one.
create function tenure.fence_list(named text default null)
returns table (resource text, token bigint, term text, renewal bigint, seen_at timestamptz, lanes bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select m.resource, m.token, m.term_id, m.renewal, m.seen_at, (select count(*) from tenure.fence_lane f where f.mark_id = m.id)
    from tenure.fence_mark m
    where named is null or m.resource = named
    order by m.resource
$$;

-- fence_lower lowers a mark that refuses the rightful leader: a token was entered
-- that no election handed out. Everything under a higher token is forgotten, and
-- whoever holds one is let in again: make sure that nobody does. It returns the
-- token that was seen before.
create function tenure.fence_lower(resource text, token bigint, reason text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    m       tenure.fence_mark;
    v_lanes jsonb;
begin
    select * into m from tenure.fence_mark k where k.resource = fence_lower.resource;
    if m.id is not null then
        perform tenure.fence_lock(m.id, true);
        select * into m from tenure.fence_mark k where k.id = m.id for update;
    end if;
    if m.id is null or token is null or token not between 0 and m.token - 1 then
        perform tenure.fence_refuse('TN004',
            format('cannot lower the mark of resource "%s" to %s: it has seen %s, allowed are 0 to one less', resource, coalesce(token::text, 'null'), coalesce(m.token, 0)),
            jsonb_build_object('kind', 'invalid', 'why', 'not lower than what was seen'));
    end if;
    with gone as (
        delete from tenure.fence_lane f where f.mark_id = m.id and f.token > fence_lower.token returning *
    )
    select jsonb_object_agg(g.lane, jsonb_build_object('token', g.token, 'position', g.position, 'digest', g.digest)) into v_lanes from gone g;
    update tenure.fence_mark k set token = fence_lower.token, term_id = '', renewal = 0, seen_at = pg_catalog.clock_timestamp() where k.id = m.id;
    perform tenure.note_audit('fence lower', resource, reason, jsonb_build_object('from', m.token, 'to', token, 'term', m.term_id, 'renewal', m.renewal, 'lanes', coalesce(v_lanes, '{}')));
    return m.token;
end
$$;

-- grant_fence gives a role the right to write behind the fence, and nothing else
-- of this schema. Whoever owns the schema calls it.
create function tenure.grant_fence(role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('grant usage on schema tenure to %I', role);
    execute format('grant execute on function tenure.enter, tenure.fence, tenure.fence_chain, tenure.fence_chain_replayed, tenure.last to %I', role);
end
$$;

-- grant_repair lets a role see marks and lower them: that of an operator.
create function tenure.grant_repair(role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('grant usage on schema tenure to %I', role);
    execute format('grant execute on function tenure.fence_list, tenure.fence_lower to %I', role);
    execute format('grant select on tenure.audit to %I', role);
end
$$;

-- Nobody may call anything in this schema until it is granted. PostgreSQL lets
-- everybody call a new function, so each migration must end like this.
revoke all on all functions in schema tenure from public;
