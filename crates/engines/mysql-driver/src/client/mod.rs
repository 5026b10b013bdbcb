//! Connections to members: MySQL's protocol on the port for administrators, and HTTP to the agent.
//!
//! Passwords are in options of connections and in statements, never in an error or a log.

pub(crate) mod agent;
pub(crate) mod contact;
mod error;
pub(crate) mod reply;
pub(crate) mod server;
pub(crate) mod sql;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use error::{Error, code};
use mysql_async::{Opts, OptsBuilder, SslOpts};
use stateward_mysql::names;

/// How long a connection may take to be made.
pub(crate) const CONNECT: Duration = Duration::from_secs(2);
/// How long a statement may take that changes little.
pub(crate) const STATEMENT: Duration = Duration::from_secs(5);
/// How long a question about its state may take.
pub(crate) const ASK: Duration = Duration::from_secs(2);

/// What every session is set to, whatever the configuration says. Nothing waits for a lock for long: a statement that this
/// side has given up must not be executed later.
const SESSION: &str = "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, sql_mode = '', \
     time_zone = '+00:00', autocommit = ON, wait_timeout = 31536000, max_execution_time = 0";

/// Where a server is, and how to be let in.
#[derive(Clone)]
pub(crate) struct Target {
    /// The pod's address.
    pub(crate) address: IpAddr,
    /// The name in the certificate.
    pub(crate) host: String,
    /// The CA that the certificate must be of, in PEM. `None`: the server has no TLS.
    pub(crate) ca: Option<Arc<Vec<u8>>>,
    /// The password of Stateward's account.
    pub(crate) password: Arc<str>,
    /// The old one, while a rotation is in progress.
    pub(crate) old_password: Option<Arc<str>>,
}

impl Target {
    /// The address of the agent.
    pub(crate) fn agent(&self) -> SocketAddr {
        SocketAddr::new(self.address, port(names::AGENT_PORT))
    }

    fn opts(&self, user: &str, password: &str, port: u16) -> Opts {
        let tls = self.ca.as_ref().map(|ca| {
            SslOpts::default()
                .with_root_certs(vec![ca.to_vec().into()])
                .with_disable_built_in_roots(true)
                .with_danger_tls_hostname_override(Some(self.host.clone()))
        });
        OptsBuilder::default()
            .ip_or_hostname(self.address.to_string())
            .tcp_port(port)
            .user(Some(user))
            .pass(Some(password))
            .init(vec![SESSION])
            .ssl_opts(tls)
            .prefer_socket(false)
            .stmt_cache_size(0)
            // What is set here is not asked for.
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(31_536_000))
            .tcp_keepalive(Some(Duration::from_secs(10)))
            .into()
    }
}

fn port(number: i32) -> u16 {
    u16::try_from(number).unwrap_or_default()
}
