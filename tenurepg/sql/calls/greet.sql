-- The first statement on a connection. The session is this client's own if the
-- server process that answers is the one that the handshake named ($1): who
-- shares server processes among clients must make up names for them, or one
-- client could cancel the other's requests. Only such a session is given settings
-- that outlast the statement: its server notices within half a minute that the
-- client is gone.
select
    pg_catalog.pg_backend_pid()::text,
    pg_catalog.current_setting('transaction_read_only'),
    case when pg_catalog.pg_backend_pid() = $1::bigint and pg_catalog.inet_client_addr() is not null then
        pg_catalog.set_config('tcp_keepalives_idle', '15', false)
        || pg_catalog.set_config('tcp_keepalives_interval', '5', false)
        || pg_catalog.set_config('tcp_keepalives_count', '3', false)
    end
