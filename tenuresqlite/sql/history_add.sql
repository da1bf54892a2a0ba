insert into tenure_history (name, at_ns, what, token, term_id, holder, detail)
values (?1, ?2, ?3, ?4, ?5, coalesce(?6, x''), coalesce(?7, x''))
