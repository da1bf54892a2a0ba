-- Changes nothing, but makes the transaction a writer before it has read: what
-- is read afterwards cannot be overtaken.
update tenure_fence set token = token where resource = ?1
