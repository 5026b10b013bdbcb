//! The verbs of `stateward agent` that a member's pod runs, as a small program for tests.

use std::error::Error;
use std::path::Path;

use stateward_mysql_driver::agent;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["agent", "install", folder] => {
            std::fs::copy(std::env::current_exe()?, Path::new(folder).join("stateward"))?;
        }
        ["agent", "mysql-init"] => agent::init().await?,
        ["agent", "mysql-run"] => std::process::exit(agent::run().await?),
        ["agent", "mysql-serve"] => agent::serve().await?,
        other => return Err(format!("unknown arguments {other:?}").into()),
    }
    Ok(())
}
