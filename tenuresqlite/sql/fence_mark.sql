select token, term_id, renewal from tenure_fence where resource = ?1
