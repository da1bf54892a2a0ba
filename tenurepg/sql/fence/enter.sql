select pg_catalog.set_config('tenure.fence_wait', $1, true), tenure.enter($2, $3, $4, $5)::text
