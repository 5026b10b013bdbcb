//! Deleting the files of an EtcdBackup that is being deleted.

use futures::TryStreamExt;
use stateward_backup::{Error, Store, names};
use stateward_etcd::api::agent::{DeleteTask, Failure};
use tracing::info;

use crate::agent::Folders;
use crate::agent::failure::of_store;
use crate::agent::let_go;
use crate::agent::place::Opening;
use crate::agent::stop::Stop;

pub(crate) async fn run(task: &DeleteTask, folders: &Folders, stop: &Stop) -> Result<(), Failure> {
    let opening = Opening::new(&task.place, folders)?;
    let gone = async { delete(task, &opening.store).await.map_err(|error| of_store(&error)) };
    stop.guard(gone).await
}

async fn delete(task: &DeleteTask, store: &Store) -> Result<(), Error> {
    for location in &task.locations {
        store.delete(&store.key_of(location)?).await?;
        info!("deleted {location}");
    }
    if !task.unproven_of.is_empty() {
        let_go::unproven_ones(store, &task.unproven_of, "").await?;
    }
    if !task.all_of_path {
        return Ok(());
    }
    let path = store.key();
    // Only what this path's own names say is deleted; a neighbour with a longer name is somebody else's.
    let is_ours = |key: &str| names::read_snapshot(path, key).is_some() || key.starts_with(&names::changes(path));
    for prefix in [names::snapshots(path), names::changes(path)] {
        let mut found = store.list(&prefix);
        while let Some(entry) = found.try_next().await? {
            if is_ours(&entry.key) {
                store.delete(&entry.key).await?;
                info!("deleted {}", store.location(&entry.key));
            }
        }
    }
    Ok(())
}
