//! Where things are in a member's pod, and what its environment says: what manifests and agent agree on.

/// The volume of a member. A claim of the seeds' shape holds the same folder for data.
pub const VOLUME: &str = "/var/lib/mysql";
/// The data directory: a folder of the volume, so that other things can be kept beside it.
pub const DATA: &str = "/var/lib/mysql/mysql";
/// The exit code of a container that found no data directory (EX_NOINPUT). Only the init container of a new pod makes one.
pub const NO_DATA: i32 = 66;
/// Saved transactions, a folder of the volume.
pub const ERRANT: &str = "errant";
/// Sockets and files of this start; in memory, shared by mysqld and the agent.
pub const RUN: &str = "/run/mysqld";
/// mysqld's socket, where clients in the pod look for it.
pub const SOCKET: &str = "/run/mysqld/mysqld.sock";
/// The socket by which the agent reaches the process that runs mysqld.
pub const CONTROL: &str = "/run/mysqld/stateward.sock";
/// The folder where the ConfigMap is mounted.
pub const CONFIG: &str = "/etc/mysql/stateward";
/// The key in the ConfigMap with the variables that running servers get too.
pub const CONFIG_KEY: &str = "my.cnf";
/// The folder with the certificates, where the cluster has TLS.
pub const TLS: &str = "/etc/mysql/tls";
/// The key of the CA in the Secret `NAME-tls`.
pub const TLS_CA: &str = "ca.crt";
/// The key of the certificate in the Secret `NAME-tls`.
pub const TLS_CERTIFICATE: &str = "tls.crt";
/// The key of the private key in the Secret `NAME-tls`.
pub const TLS_KEY: &str = "tls.key";
/// The folder with those keys of the Secret `NAME-internal` that the container needs.
pub const INTERNAL: &str = "/etc/stateward/internal";
/// The folder with root's password, in the init container only.
pub const ROOT: &str = "/etc/stateward/root";
/// The key in the Secrets `NAME-root` and `NAME-app` with the password.
pub const PASSWORD_KEY: &str = "password";
/// The folder with the `stateward` program.
pub const TOOLS: &str = "/opt/stateward";
/// Temporary files of mysqld.
pub const TEMPORARY: &str = "/tmp";

/// Variable: the pod's name, which ends in the ordinal.
pub const ENV_POD: &str = "STATEWARD_POD";
/// Variable: the pod's address.
pub const ENV_ADDRESS: &str = "STATEWARD_ADDRESS";
/// Variable: the domain that is added to the pod's name.
pub const ENV_DOMAIN: &str = "STATEWARD_DOMAIN";
/// Variable: the server ID of ordinal 0.
pub const ENV_SERVER_ID_BASE: &str = "STATEWARD_SERVER_ID_BASE";
/// Variable: the part of my.cnf that only a restart changes. It is part of the pod, so that a restart in place cannot pick up
/// what the members before it have not tried.
pub const ENV_STATIC: &str = "STATEWARD_MY_CNF";
