-- An empty argument arrives as null, which coalesce makes an empty blob.
insert into tenure_lease (
	name, format, token, term_id, holder, meta, ttl_ns, expires_ns, clock, adopted, receipt, renewal,
	used, used_by, released, evicted, fenced_only, acquired_ns, renewed_ns, burns
) values (
	?1, ?2, ?3, ?4, coalesce(?5, x''), coalesce(?6, x''), ?7, ?8, ?9, ?10, ?11, ?12,
	?13, ?14, ?15, coalesce(?16, x''), ?17, ?18, ?19, ?20
)
on conflict (name) do update set
	format = excluded.format, token = excluded.token, term_id = excluded.term_id, holder = excluded.holder,
	meta = excluded.meta, ttl_ns = excluded.ttl_ns, expires_ns = excluded.expires_ns, clock = excluded.clock,
	adopted = excluded.adopted, receipt = excluded.receipt, renewal = excluded.renewal, used = excluded.used,
	used_by = excluded.used_by, released = excluded.released, evicted = excluded.evicted,
	fenced_only = excluded.fenced_only, acquired_ns = excluded.acquired_ns, renewed_ns = excluded.renewed_ns,
	burns = excluded.burns
