delete from tenure_history where name = ?1 and id <= (
	select id from tenure_history where name = ?1 order by id desc limit 1 offset ?2
)
