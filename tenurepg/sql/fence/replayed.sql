select pg_catalog.set_config('tenure.fence_wait', $1, true), tenure.fence_chain_replayed($2, $3, $4, $5, $6, $7, $8)
