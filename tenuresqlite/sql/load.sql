select name, format, token, term_id, holder, meta, ttl_ns, expires_ns, clock, adopted, receipt, renewal,
	used, used_by, released, evicted, fenced_only, acquired_ns, renewed_ns, burns
from tenure_lease where name = ?1
