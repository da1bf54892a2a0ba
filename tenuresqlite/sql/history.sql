select at_ns, what, token, term_id, holder, detail from tenure_history where name = ?1 order by id desc limit ?2
