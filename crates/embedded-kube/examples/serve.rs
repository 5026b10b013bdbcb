//! An API server in a folder, for manual experiments: `cargo run -p embedded-kube --example serve -- FOLDER`. Writes
//! `FOLDER/kubeconfig` and serves until it is killed.

use std::time::Instant;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let folder = std::env::args().nth(1).ok_or("usage: serve FOLDER")?;
    let cluster = embedded_kube::Cluster::builder().folder(&folder).start().await?;
    println!("ready after {:?} at https://{}", began.elapsed(), cluster.address());
    std::fs::write(format!("{folder}/kubeconfig"), cluster.kubeconfig_yaml())?;
    std::future::pending::<()>().await;
    Ok(())
}
