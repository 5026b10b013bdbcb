//! The agent beside a server: HTTP, see `stateward_mysql::agent`.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stateward_mysql::GtidSet;
use stateward_mysql::agent::{END, End, Ended, SAVE_ERRANT, STATE, SaveErrant, Saving, State};
use stateward_mysql::names::AGENT_PORT;

use super::{CONNECT, Target};

/// For a look.
const LOOK: Duration = Duration::from_secs(2);
/// For ending a process, and for saving what is little.
const DO: Duration = Duration::from_secs(8);

/// Why an agent did not reply as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AgentError {
    /// It could not be asked.
    #[error("the agent cannot be reached: {0}")]
    Unreached(String),
    /// It refused.
    #[error("the agent replied with {0}")]
    Refused(String),
}

/// An agent.
pub(crate) struct Agent {
    client: reqwest::Client,
    base: String,
    token: Arc<str>,
}

impl Agent {
    pub(crate) fn new(target: &Target, token: Arc<str>) -> Result<Self, AgentError> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .no_proxy()
            .pool_max_idle_per_host(1)
            .resolve(&target.host, target.agent());
        if let Some(ca) = &target.ca {
            let roots = reqwest::Certificate::from_pem_bundle(ca).map_err(unreached)?;
            builder = builder.tls_certs_only(roots);
        }
        let scheme = if target.ca.is_some() { "https" } else { "http" };
        Ok(Self {
            client: builder.build().map_err(unreached)?,
            base: format!("{scheme}://{}:{AGENT_PORT}", target.host),
            token,
        })
    }

    /// What it knows.
    pub(crate) async fn state(&self) -> Result<State, AgentError> {
        self.ask(Method::GET, STATE, None::<&()>, LOOK).await
    }

    /// Ends a process of mysqld at once.
    pub(crate) async fn end(&self, boot: Option<String>) -> Result<Ended, AgentError> {
        self.ask(Method::POST, END, Some(&End { boot }), DO).await
    }

    /// Saves transactions.
    pub(crate) async fn save(&self, gtids: GtidSet) -> Result<Saving, AgentError> {
        self.ask(Method::POST, SAVE_ERRANT, Some(&SaveErrant { gtids }), DO)
            .await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<T, AgentError> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        request = request.bearer_auth(&self.token).timeout(limit);
        if let Some(body) = body {
            let text = serde_json::to_vec(body).map_err(|error| AgentError::Refused(error.to_string()))?;
            request = request.header("content-type", "application/json").body(text);
        }
        let response = request.send().await.map_err(unreached)?;
        let status = response.status();
        let text = response.bytes().await.map_err(unreached)?;
        if !status.is_success() {
            let words = String::from_utf8_lossy(&text).chars().take(200).collect::<String>();
            return Err(AgentError::Refused(format!("{}: {words}", status.as_u16())));
        }
        serde_json::from_slice(&text).map_err(|error| AgentError::Refused(error.to_string()))
    }
}

/// In words that do not name addresses.
fn unreached(error: reqwest::Error) -> AgentError {
    AgentError::Unreached(if error.is_timeout() {
        "no reply in time".into()
    } else if error.is_connect() {
        "no connection".into()
    } else {
        error.without_url().to_string()
    })
}
