insert into tenure_fence (resource, token, term_id, renewal) values (?1, ?2, coalesce(?3, x''), ?4)
on conflict (resource) do update set token = excluded.token, term_id = excluded.term_id, renewal = excluded.renewal
