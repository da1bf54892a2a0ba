select resource, token, term, renewal, seen_at, lanes from tenure.fence_list(nullif($1, ''))
