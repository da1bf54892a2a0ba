-- Entries are added in the order of time, so the oldest have the lowest ids; a
-- hundred at a time keep the transaction short.
delete from tenure_history where at_ns < ?1 and id in (
	select id from tenure_history order by id limit 100
)
