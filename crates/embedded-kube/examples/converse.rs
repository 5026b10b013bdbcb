//! Runs the table of API conversations against the cluster of `KUBECONFIG`: `cargo run -p embedded-kube --example
//! converse`. With `--quiet` it prints only those that fail.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = kube::Config::infer().await?;
    config.default_retry = false;
    let client = kube::Client::try_from(config)?;
    let quiet = std::env::args().any(|word| word == "--quiet");
    let outcomes = embedded_kube::conversations::run(&client, embedded_kube::conversations::TABLE).await?;
    for outcome in &outcomes {
        match &outcome.failure {
            None if quiet => {}
            None => println!("ok      {}", outcome.name),
            Some(why) => println!("FAILED  {}\n    {why}", outcome.name),
        }
    }
    let failed = outcomes.iter().filter(|o| o.failure.is_some()).count();
    println!("{} conversations, {failed} failed", outcomes.len());
    if failed > 0 {
        Err("the table does not hold".into())
    } else {
        Ok(())
    }
}
