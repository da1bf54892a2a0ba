insert into tenure_fence_lane (resource, lane, token, position, digest) values (?1, coalesce(?2, x''), ?3, ?4, coalesce(?5, x''))
on conflict (resource, lane) do update set token = excluded.token, position = excluded.position, digest = excluded.digest
