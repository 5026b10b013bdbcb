//! What runs in the pod of a member: it makes the data directory, runs mysqld sealed, and serves the agent's protocol
//! ([`stateward_mysql::agent`]).
