//! The bare operator on whatever `KUBECONFIG` names, for trying changes out on any ground.

use stateward_etcd_driver::{Config, Election, run};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let client = kube::Client::try_default().await?;
    let stop = CancellationToken::new();
    let ended = stop.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        ended.cancel();
    });
    let config = Config {
        listen: std::env::var("LISTEN").ok().and_then(|text| text.parse().ok()),
        election: std::env::var("IDENTITY")
            .ok()
            .map(|identity| Election::new("default", "stateward", identity)),
        ..Config::default()
    };
    run(config, client, stop).await?;
    Ok(())
}
