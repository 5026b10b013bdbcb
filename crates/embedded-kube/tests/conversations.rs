//! Runs the table of API conversations against the embedded server. `examples/converse.rs` runs it against any other.

use embedded_kube::{Cluster, conversations};

#[tokio::test]
async fn the_server_answers_as_the_table_says() {
    let cluster = Cluster::start().await.unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(cluster.kubeconfig(), &Default::default())
        .await
        .unwrap();
    config.default_retry = false;
    let client = kube::Client::try_from(config).unwrap();
    let outcomes = conversations::run(&client, conversations::TABLE).await.unwrap();
    let failed: Vec<String> = outcomes
        .iter()
        .filter_map(|o| Some(format!("{}: {}", o.name, o.failure.as_ref()?)))
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} failed:\n{}",
        failed.len(),
        outcomes.len(),
        failed.join("\n")
    );
    assert!(outcomes.len() >= 60, "{}", outcomes.len());
}
