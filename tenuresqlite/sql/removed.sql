select token, term_id, holder, ttl_ns, released from tenure_removed where name = ?1
