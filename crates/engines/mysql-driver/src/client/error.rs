//! Why a server did not do what it was asked for, in words that do not change from one time to the next.

use mysql_async::Error as Client;

/// Error codes of MySQL.
pub(crate) mod code {
    /// There is no such database.
    pub(crate) const BAD_DB: u16 = 1049;
    /// The user or the password is wrong.
    pub(crate) const ACCESS_DENIED: u16 = 1045;
    /// There is no such thread.
    pub(crate) const NO_SUCH_THREAD: u16 = 1094;
    /// There is no such table.
    pub(crate) const NO_SUCH_TABLE: u16 = 1146;
    /// There is no such system variable.
    pub(crate) const UNKNOWN_VARIABLE: u16 = 1193;
    /// No channel is configured.
    pub(crate) const NOT_A_REPLICA: u16 = 1200;
    /// A lock was not had in time.
    pub(crate) const LOCK_TIMEOUT: u16 = 1205;
    /// The value of a variable has another type.
    pub(crate) const WRONG_TYPE: u16 = 1232;
    /// A variable cannot be set in a running server.
    pub(crate) const READ_ONLY_VARIABLE: u16 = 1238;
    /// The account is gone.
    pub(crate) const NO_SUCH_USER: u16 = 1396;
    /// No channel is configured.
    pub(crate) const NO_CONNECTION_METADATA: u16 = 1871;
}

/// Why a server did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// It does not accept connections.
    #[error("connection refused")]
    Refused,
    /// It does not answer in time.
    #[error("no reply in time")]
    TimedOut,
    /// It knows the account, or not, and does not accept the password.
    #[error("access denied for Stateward's account")]
    Denied,
    /// The connection broke.
    #[error("{0}")]
    Broken(String),
    /// It refused a statement.
    #[error("MySQL error {code}: {message}")]
    Server {
        /// MySQL's number.
        code: u16,
        /// MySQL's words.
        message: String,
    },
    /// It said what this does not understand.
    #[error("its reply cannot be read: {0}")]
    Unreadable(String),
}

impl Error {
    /// MySQL's number of this error, if the server refused a statement.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Server { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The server refused a statement, and the connection is as good as before.
    pub(crate) fn keeps_connection(&self) -> bool {
        matches!(self, Self::Server { .. } | Self::Unreadable(_))
    }
}

impl From<Client> for Error {
    fn from(error: Client) -> Self {
        match error {
            Client::Server(error) if error.code == code::ACCESS_DENIED => Self::Denied,
            Client::Server(error) => Self::Server {
                code: error.code,
                message: error.message,
            },
            Client::Io(mysql_async::IoError::Io(error)) => match error.kind() {
                std::io::ErrorKind::ConnectionRefused => Self::Refused,
                std::io::ErrorKind::TimedOut => Self::TimedOut,
                _ => Self::Broken(format!("the connection broke: {}", error.kind())),
            },
            Client::Io(error) => Self::Broken(format!("TLS: {error}")),
            Client::Driver(mysql_async::DriverError::ConnectionClosed) => {
                Self::Broken("the connection was closed".into())
            }
            Client::Driver(error) => Self::Broken(error.to_string()),
            other => Self::Broken(other.to_string()),
        }
    }
}
