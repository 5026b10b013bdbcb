//! The version of the cluster, which follows the slowest member some seconds after it: what `GET /version` says.
//!
//! gRPC does not tell it, so this is the one plain request.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use serde::Deserialize;
use stateward_etcd::api::EtcdVersion;

use crate::client::calls::Client;
use crate::client::error::{Error, Result};

/// What etcd answers fits in a line.
const LARGEST_ANSWER: usize = 4096;

#[derive(Deserialize)]
struct Versions {
    #[serde(rename = "etcdcluster", default)]
    cluster: String,
}

impl Client {
    /// The version that the members have agreed on; `None` while they have not.
    pub async fn cluster_version(&self) -> Result<Option<EtcdVersion>> {
        let patience = self.timeouts.request;
        let address = self.address();
        let reply = tokio::time::timeout(patience, self.get_version()).await;
        let reply = reply.unwrap_or_else(|_| {
            Err(Error::TimedOut(format!(
                "{address} did not reply within {patience:?} to GET /version"
            )))
        });
        read(&reply.map_err(|error| self.dial.failed(error))?)
    }

    async fn get_version(&self) -> Result<Bytes> {
        let failed = |error: &dyn std::fmt::Display| Error::Unreachable(format!("GET /version: {error}"));
        let stream = self
            .dial
            .for_plain_requests()
            .connect()
            .await
            .map_err(|error| failed(&error))?;
        let (mut send, connection) = hyper::client::conn::http1::handshake(stream)
            .await
            .map_err(|error| failed(&error))?;
        let request = http::Request::get("/version")
            .header(http::header::HOST, self.address().to_string())
            .body(Empty::<Bytes>::new())
            .map_err(|error| failed(&error))?;
        let reply = async {
            let response = send.send_request(request).await.map_err(|error| failed(&error))?;
            let body = Limited::new(response.into_body(), LARGEST_ANSWER);
            body.collect()
                .await
                .map(|body| body.to_bytes())
                .map_err(|error| failed(&error))
        };
        // The connection does its work as long as it is polled, and ends with the answer.
        tokio::select! {
            reply = reply => reply,
            ended = connection => Err(match ended {
                Ok(()) => failed(&"the connection was closed"),
                Err(error) => failed(&error),
            }),
        }
    }
}

fn read(reply: &[u8]) -> Result<Option<EtcdVersion>> {
    let versions: Versions = serde_json::from_slice(reply)
        .map_err(|error| Error::Refused(format!("GET /version was answered with something else: {error}")))?;
    // Before it is decided etcd says "not_decided".
    Ok(versions.cluster.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_cluster_is_read_once_it_is_decided() {
        let read = |text: &str| read(text.as_bytes()).expect("an answer");
        assert_eq!(
            read(r#"{"etcdserver":"3.5.35","etcdcluster":"3.4.0"}"#),
            Some(EtcdVersion::new(3, 4, 0))
        );
        assert_eq!(read(r#"{"etcdserver":"3.4.23","etcdcluster":"not_decided"}"#), None);
    }
}
