select value from tenure_meta where key = 'schema'
